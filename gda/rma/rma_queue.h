#pragma once
// One queue pair to one rank, or to the own one: work waits here until there is room, is posted as
// ordinary work requests, and becomes done in order.
//
// The last work request of each piece of work asks for a completion, and one completion is that of
// all before it, because RC completes in order.  Transfers larger than a message of the adapter go
// in pieces.
//
// One with a second path survives the first one's queue pair: stop(), then, once both ends have
// stopped theirs, resume().  Between the two nothing is posted.
//
// Threads: under the context's lock.
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/rma/rma_requests.h"
#include "gda/rma/rma_ring.h"
#include "gda/served/back/gpu_flush.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda::rma {

// A signal without atomics, as it travels.
struct SignalMessage {
  static constexpr std::size_t kBytes = 24;
  std::uint32_t window = 0;
  std::uint64_t offset = 0, add = 0;

  void encode(std::uint8_t* to) const;
  static SignalMessage decode(const std::uint8_t* from);
};

// Of memory, over the team's first port and its second.
using PortKeys = std::array<std::uint32_t, 2>;

struct Work {
  enum class Kind : std::uint8_t { write, read, flush };
  Kind kind = Kind::write;
  bool signals = false;
  bool flushes = false;  // done only when what is in GPU memory by then is visible
  std::uint64_t local = 0, remote = 0, bytes = 0;
  PortKeys lkey{}, rkey{};
  std::uint64_t signal = 0;  // address there
  PortKeys signal_rkey{};
  SignalMessage message;  // add is in it in either case
  Request* request = nullptr;
};

// What is posted with one call; shared by the queues of a context.
struct Chain {
  static constexpr std::uint32_t kMost = 32;
  std::array<ibv_send_wr, kMost> requests;
  std::array<ibv_sge, kMost> sges;
  std::uint32_t count = 0;
};

// Which work request a completion is of: the queue in the upper 16 bits, what it is below, then a
// number.
struct WorkId {
  // The last four: of queues that move (rma_moves.h).
  enum class What : std::uint8_t { work, probe, receive, question, taken, last_send, last_receive };
  std::uint16_t queue = 0;
  What what = What::work;
  std::uint32_t number = 0;

  std::uint64_t packed() const {
    return std::uint64_t{queue} << 48 | std::uint64_t{static_cast<std::uint8_t>(what)} << 32 |
           number;
  }
  static WorkId of(const ibv_wc& wc) {
    return {static_cast<std::uint16_t>(wc.wr_id >> 48),
            static_cast<What>(static_cast<std::uint8_t>(wc.wr_id >> 32)),
            static_cast<std::uint32_t>(wc.wr_id)};
  }
};

// A way to the rank, over one port.
struct QueuePath {
  QueuePair* pair = nullptr;  // null: there is none
  std::uint32_t scratch_lkey = 0;
  ProbeTarget probed;
};

struct QueueSetup {
  std::array<QueuePath, 2> paths;
  Chain* chain = nullptr;
  GpuFlush* flush = nullptr;  // null: none is needed
  std::uint16_t number = 0;
  std::uint32_t slots = 1;  // work requests that a queue pair holds, beside Queue::kSpare
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  // Registered memory of scratch_bytes(): old values of atomics, signals that travel.
  std::uint8_t* scratch = nullptr;
  bool counted = false;
  std::atomic<bool>* failed = nullptr;  // raised with the first failure
  std::string name;                     // "RMA queue of rank 0 to rank 3 (...)", for messages
};

class Queue {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static_assert(kScratchSlot >= SignalMessage::kBytes);
  static std::size_t scratch_bytes(std::uint32_t slots) { return (slots + 1) * kScratchSlot; }
  // Work requests of a queue pair beside those: a probe, a question, the number to the peer, the
  // last one before it is left.
  static constexpr std::uint32_t kSpare = 4;

  explicit Queue(const QueueSetup& setup)
      : setup_(setup), marks_(setup.slots), other_ready_(setup.paths[1].pair != nullptr) {}

  // Not after a failure.
  void start(const Work& work) { work_.push({.work = work}); }
  // Posts what there is room for, and tells what has become done.
  void advance();
  // Of WorkId::What::work, probe and last_send, over the path that it is on.
  void on_completion(const ibv_wc& wc, WorkId::What what);
  // Everything here and later ends with `why`; nothing more is moved.
  void fail(Status why);

  // Asks the peer's adapter for a sign of life.
  void ask();
  // Something is always different after things have moved.
  std::uint64_t progress() const { return probe_.answers() + completions_; }

  // The way to the other path, whether there is one.
  bool may_move() const { return other_ready_ && failure_ == Status::ok; }
  void cannot_move() { other_ready_ = false; }
  int on() const { return on_; }  // which path, 0 or 1
  // A write of no bytes over the other one.  False: it cannot be posted.
  bool ask_over_other();
  // The queue pair goes to error; also done by an error completion of the path.
  void stop();
  bool stopped() const { return phase_ != Phase::serving; }
  // All that was posted to it has come back.
  bool drained() const { return phase_ == Phase::drained; }
  // To the peer, over the other path: how many of its signals were taken.  False: it cannot be
  // posted.
  bool tell_taken(std::uint64_t taken);
  // Both ends have.  `taken`: how many signals of this queue the peer ever took.  False where that
  // cannot be, which was logged.
  bool resume(std::uint64_t taken);

  bool idle() const { return work_.empty(); }
  // For who waits until what was asked for by now is done: counts of both.
  std::uint64_t asked_for() const { return work_.end(); }
  std::uint64_t told() const { return work_.first(); }
  Status failure() const { return failure_; }  // ok: works
  const std::string& name() const { return setup_.name; }

 private:
  enum class Phase : std::uint8_t { serving, stopped, drained };
  struct Item {
    Work work;
    std::uint64_t posted = 0;  // bytes
    std::uint64_t ticket = 0;  // of the flush; 0: none was asked for
    bool arrived = false;      // its last work request has completed
  };
  // A work request under way that asks for a completion.
  struct Mark {
    std::uint64_t item = 0;
    std::uint32_t requests = 0;  // it and those before it that do not ask
    bool last = false;           // of its item
  };

  bool chain(Item& item, std::uint64_t number);
  ibv_send_wr* next();
  void mark(ibv_send_wr& wr, std::uint64_t item, bool last);
  void fill_signal(ibv_send_wr& wr, const Work& work, std::uint32_t slot);
  void post();
  void tell();
  bool works() const { return failure_ == Status::ok && !stopped(); }
  const QueuePath& path() const { return setup_.paths[static_cast<std::size_t>(on_)]; }
  const QueuePath& other() const { return setup_.paths[static_cast<std::size_t>(1 - on_)]; }
  std::uint64_t id(WorkId::What what) const { return WorkId{setup_.number, what, 0}.packed(); }

  const QueueSetup setup_;
  Ring<Item> work_;
  std::uint64_t posted_ = 0;     // items before this number are posted
  std::uint64_t posting_ = 0;    // the item of the last in the chain
  std::uint32_t in_flight_ = 0;  // work requests that hold a slot, chained ones included
  std::uint32_t unmarked_ = 0;   // since the last that asks
  std::uint32_t slot_ = 0;       // of the next
  std::vector<Mark> marks_;      // ring
  std::uint64_t first_mark_ = 0, next_mark_ = 0;
  std::uint64_t completions_ = 0;
  LivenessProbe probe_;
  Phase phase_ = Phase::serving;
  int on_ = 0;
  bool other_ready_ = false;
  std::uint64_t signals_done_ = 0;  // of work that was told to be done
  Status failure_ = Status::ok;
};

}  // namespace twinpath::gda::rma
