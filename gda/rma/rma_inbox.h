#pragma once
// The receiving end of signals without atomics: messages of peers, which this rank's CPU adds to
// its words.  A receive completes after the writes that the queue pair has sent before (IB
// specification vol. 1, 9.4.1), so the data has been *written*; a GPU's memory is pushed by a READ
// before anything is added (gda/served/back/gpu_flush.h says why).
//
// Words in host memory: a READ of any of the GPU's windows, then an atomic add.  Words in GPU
// memory: the adapter READs the word, which is that push, and WRITEs the sum.  Between the two
// nobody else may add to the word, so one context of a team does it at a time.  Signals are told in
// the order in which they came.
//
// Threads: under the context's lock.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "plugin/base/owned.h"

namespace twinpath::gda::rma {

class Inbox {
 public:
  static constexpr std::uint32_t kReceives = 64;  // of each queue pair; senders wait for more (RNR)
  static constexpr std::size_t kBatch = 16;       // words in GPU memory at a time
  // Registered memory that it needs.
  static std::size_t bytes(std::size_t queues) {
    return queues * kReceives * Queue::kScratchSlot + kBatch * sizeof(std::uint64_t);
  }

  // `flush`: null where none is needed.
  static Result<std::unique_ptr<Inbox>> make(Team& team, std::size_t queues, std::uint8_t* memory,
                                             std::uint32_t lkey, GpuFlush* flush);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  Status listen(std::uint16_t queue, ibv_qp* qp);
  // False: what came is no signal for a window of this rank, which was logged.
  bool on_receive(const ibv_wc& wc, WorkId id, const std::string& from);
  // Adds what can be added.  False: the adapter does not do it, which was logged.
  bool turn();
  // Nothing is added any more, and other contexts of the team may.
  void stop();
  // Counts: of signals that came, and that were added.
  std::uint64_t came() const { return waiting_.end(); }
  std::uint64_t added() const { return waiting_.first(); }

 private:
  struct Waiting {
    std::uint16_t queue = 0;
    std::uint32_t slot = 0;
    std::uint64_t address = 0, add = 0;
    std::uint32_t rkey = 0;
    bool on_gpu = false;
    std::uint64_t ticket = 0;
  };
  struct Word {
    std::uint64_t address = 0, add = 0;
    std::uint32_t rkey = 0;
  };
  enum class Phase : std::uint8_t { idle, reading, writing };

  explicit Inbox(Team& team) : team_(team) {}
  int post(std::uint16_t queue, std::uint32_t slot);
  void add_in_host();
  bool begin_words();
  bool post_words(ibv_wr_opcode opcode);
  bool look_at_words();
  void end_words();
  void give_back(const Waiting& done);
  bool refuse(const char* what, int error) const;

  Team& team_;
  std::uint8_t* receives_ = nullptr;
  std::uint64_t* values_ = nullptr;  // of words
  std::uint32_t lkey_ = 0;
  GpuFlush* flush_ = nullptr;
  Owned<ibv_cq> cq_;
  std::unique_ptr<QueuePair> loop_;  // joined to itself
  std::vector<ibv_qp*> qps_;         // by queue
  Ring<Waiting> waiting_;
  Phase phase_ = Phase::idle;
  std::array<Word, kBatch> words_;
  std::size_t word_count_ = 0, under_way_ = 0;
  std::uint64_t taken_ = 0;  // of the signals that wait, in words_
};

}  // namespace twinpath::gda::rma
