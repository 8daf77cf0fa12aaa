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
// Where the context's queues can move to a second port (rma_moves.h), each has receives there from
// the start, in slots of their own: a slot is given back to the queue pair that it belongs to.  How
// many signals of a queue have been taken, over both, is what its sender must know.  The adapter
// that adds to words is the second port's, too, once the first one's has failed to: what it READ
// and wrote is done anew, as nobody else has added meanwhile.
//
// Threads: under the context's lock.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gda/rma/rma_queue.h"
#include "gda/rma/rma_team.h"
#include "plugin/base/owned.h"

namespace twinpath::gda::rma {

class Inbox {
 public:
  static constexpr std::uint32_t kReceives = 64;  // of each queue pair; senders wait for more (RNR)
  static constexpr std::size_t kBatch = 16;       // words in GPU memory at a time
  // The first message over a second queue pair is none's, but a number.
  static constexpr std::uint32_t kSecondReceives = kReceives + 1;
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

  // The queue's queue pair over that port.
  Status listen(std::uint16_t queue, int port, ibv_qp* qp);
  // False: what came is no signal for a window of this rank, which was logged.
  bool on_receive(const ibv_wc& wc, WorkId id, const std::string& from);
  // Signals of that queue ever taken.
  std::uint64_t taken(std::uint16_t queue) const { return counts_[queue]; }
  // That queue pair is in error: posts a receive that comes back last of all (What::last_receive).
  // False: it takes none.
  bool ask_for_last(std::uint16_t queue, int port);
  // What the peer says of this rank's signals, in the first message over a second queue pair;
  // empty: it is none.
  std::optional<std::uint64_t> number_in(const ibv_wc& wc, WorkId id) const;
  // Adds what can be added.  False: the adapter does not do it, which was logged.
  bool turn();
  // The first port is left: the second one's adapter adds from now on, where it can.
  void leave_first_port();
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
  };
  static std::uint32_t slots(bool second) { return kReceives + (second ? kSecondReceives : 0); }
  enum class Phase : std::uint8_t { idle, reading, writing };

  explicit Inbox(Team& team) : team_(team) {}
  Status make_loop(int port, const Rail& rail, const AdapterLimits& limits);
  std::uint8_t* receive(std::uint16_t queue, std::uint32_t slot) const {
    return receives_ + (std::size_t{queue} * slots_ + slot) * Queue::kScratchSlot;
  }
  static int port_of(std::uint32_t slot) { return slot < kReceives ? 0 : 1; }
  Loop& loop() { return loops_[static_cast<std::size_t>(on_)]; }
  int post(std::uint16_t queue, std::uint32_t slot);
  void add_in_host();
  bool begin_words();
  bool post_words(ibv_wr_opcode opcode);
  bool look_at_words();
  // To which what fails may go on.
  bool has_other_loop() const {
    return on_ == 0 && loops_[1].pair != nullptr &&
           team_.second->lacks.load(std::memory_order_relaxed) == nullptr;
  }
  bool go_on();
  void end_words();
  void give_back(const Waiting& done);
  bool refuse(const char* what, int error) const;

  Team& team_;
  std::uint8_t* receives_ = nullptr;
  std::uint32_t slots_ = kReceives;  // of a queue, over both ports
  std::uint64_t* values_ = nullptr;  // of words
  PortKeys lkeys_{};
  GpuFlush* flush_ = nullptr;
  std::array<Loop, 2> loops_;
  int on_ = 0;                               // which of these
  std::array<std::vector<ibv_qp*>, 2> qps_;  // by port, queue
  std::vector<std::uint64_t> counts_;        // by queue
  int failed_ = 0;                           // status of a work request of the words
  Ring<Waiting> waiting_;
  Phase phase_ = Phase::idle;
  std::array<Word, kBatch> words_;
  std::size_t word_count_ = 0, under_way_ = 0;
  std::uint64_t taken_ = 0;  // of the signals that wait, in words_
};

}  // namespace twinpath::gda::rma
