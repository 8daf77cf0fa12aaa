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
// Where the context's queues can move to another queue pair (rma_moves.h), all queue pairs of one
// have receives in the same slots: signals come by one of them at a time, the next once all that
// the last had has come back, and whatever else comes is immediate data, which leaves memory alone.
// A receive is given back to the queue pair that is in use, unless it was another one's.  How many
// signals of a queue have been taken, over all, is what its sender must know.  The adapter that
// adds to words goes with the queues, or is the other port's once it has failed to: what it READ
// and wrote is done anew, as nobody else has added meanwhile.
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
  // Registered memory that it needs; `second`: with a second port.
  static std::size_t bytes(std::size_t queues, bool second) {
    return queues * slots(second) * Queue::kScratchSlot + kBatch * sizeof(std::uint64_t);
  }

  // `lkeys`: of the memory over either port; `second`: there is one.  `flush`: null where none is
  // needed.
  struct Memory {
    std::uint8_t* at = nullptr;
    PortKeys lkeys{};
    bool second = false;
  };
  static Result<std::unique_ptr<Inbox>> make(Team& team, std::size_t queues, const Memory& memory,
                                             GpuFlush* flush);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Gives all its receives to a queue pair of that queue.  By any thread.
  Status prepare(std::size_t queue, int port, ibv_qp* qp) const;
  // The same, of the one that is in use from now on, over the first port.
  Status listen(std::size_t queue, ibv_qp* qp);
  // False: what came is no signal for a window of this rank, which was logged.
  bool on_receive(const ibv_wc& wc, const std::string& from);
  // See gda/served/back/moving.h.
  std::uint64_t taken(std::size_t queue) const { return rows_[queue].taken; }
  bool ask_for_last(std::size_t queue);
  void move(std::size_t queue, int port, ibv_qp* qp);
  void give_back(const ibv_wc& wc) {
    (void)post(WorkRequestId::pair(wc), static_cast<std::uint32_t>(WorkRequestId::slot(wc)));
  }
  // Adds what can be added.  False: the adapter does not do it, which was logged.
  bool turn();
  // Nothing is added any more, and other contexts of the team may.
  void stop();
  // Counts: of signals that came, and that were added.
  std::uint64_t came() const { return waiting_.end(); }
  std::uint64_t added() const { return waiting_.first(); }

 private:
  // The queue pair of a queue that is in use.
  struct Row {
    ibv_qp* qp = nullptr;
    int port = 0;
    std::uint32_t generation = 0;  // of those in use so far
    std::uint64_t taken = 0;       // signals, over all
  };
  struct Waiting {
    std::uint16_t queue = 0;
    std::uint32_t slot = 0, generation = 0;
    std::uint64_t address = 0, add = 0;
    PortKeys rkey{};
    bool on_gpu = false;
    std::uint64_t ticket = 0;
  };
  struct Word {
    std::uint64_t address = 0, add = 0;
    PortKeys rkey{};
  };
  // By which the adapter adds, over one port.
  struct Loop {
    Owned<ibv_cq> cq;
    std::unique_ptr<QueuePair> pair;  // joined to itself; null: there is none
    bool stopped = false;             // in error, by this end or for a failure
  };
  // One more where there is a number to come.
  static std::uint32_t slots(bool second) { return kReceives + (second ? 1 : 0); }
  enum class Phase : std::uint8_t { idle, reading, writing };

  explicit Inbox(Team& team) : team_(team) {}
  Status make_loop(int port, const Rail& rail, const AdapterLimits& limits);
  std::uint8_t* receive(std::size_t queue, std::uint32_t slot) const {
    return receives_ + (queue * slots_ + slot) * Queue::kScratchSlot;
  }
  Loop& loop() { return loops_[static_cast<std::size_t>(on_)]; }
  int post(std::size_t queue, std::uint32_t slot) const {
    return post(queue, slot, rows_[queue].port, rows_[queue].qp);
  }
  int post(std::size_t queue, std::uint32_t slot, int port, ibv_qp* qp) const;
  void add_in_host();
  bool begin_words();
  bool post_words(ibv_wr_opcode opcode);
  bool look_at_words();
  // To which what fails may go on.
  bool has_other_loop() const {
    return loops_[1].pair != nullptr &&
           (on_ == 1 || team_.second->lacks.load(std::memory_order_relaxed) == nullptr);
  }
  void add_over(int port);
  bool change_loop();
  bool go_on();
  void end_words();
  void give_back(const Waiting& done);
  bool refuse(const char* what, int error) const;
  const char* name_of(int port) const {
    return (port == 0 ? team_.rail : team_.second->rail).port.port->name.c_str();
  }

  Team& team_;
  std::uint8_t* receives_ = nullptr;
  std::uint32_t slots_ = kReceives;  // of a queue
  std::uint64_t* values_ = nullptr;  // of words
  PortKeys lkeys_{};
  GpuFlush* flush_ = nullptr;
  std::array<Loop, 2> loops_;
  int on_ = 0;             // which of these
  std::vector<Row> rows_;  // by queue
  int failed_ = 0;         // status of a work request of the words
  int failures_ = 0;       // of loops, one after the other, with the same words
  Ring<Waiting> waiting_;
  Phase phase_ = Phase::idle;
  std::array<Word, kBatch> words_;
  std::size_t word_count_ = 0, under_way_ = 0;
  std::uint64_t taken_ = 0;  // of the signals that wait, in words_
};

}  // namespace twinpath::gda::rma
