#pragma once
// One queue pair to one rank, or to the own one: work waits here until there is room, is posted as
// ordinary work requests, and becomes done in order.
//
// The last work request of each piece of work asks for a completion, and one completion is that of
// all before it, because RC completes in order.  Transfers larger than a message of the adapter go
// in pieces.
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

struct Work {
  enum class Kind : std::uint8_t { write, read, flush };
  Kind kind = Kind::write;
  bool signals = false;
  bool flushes = false;  // done only when what is in GPU memory by then is visible
  std::uint64_t local = 0, remote = 0, bytes = 0;
  std::uint32_t lkey = 0, rkey = 0;
  std::uint64_t signal = 0;  // address there
  std::uint32_t signal_rkey = 0;
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
  enum class What : std::uint8_t { work, probe, receive };
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

struct QueueSetup {
  QueuePair* pair = nullptr;
  Chain* chain = nullptr;
  GpuFlush* flush = nullptr;  // null: none is needed
  std::uint16_t number = 0;
  std::uint32_t slots = 1;  // work requests that the queue pair holds; it holds one more for probes
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  // Registered memory, slots * kScratchSlot bytes: old values of atomics, signals that travel.
  std::uint8_t* scratch = nullptr;
  std::uint32_t scratch_lkey = 0;
  bool counted = false;
  ProbeTarget probed;
  std::atomic<bool>* failed = nullptr;  // raised with the first failure
  std::string name;                     // "RMA queue of rank 0 to rank 3 (...)", for messages
};

class Queue {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static_assert(kScratchSlot >= SignalMessage::kBytes);

  explicit Queue(const QueueSetup& setup) : setup_(setup), marks_(setup.slots) {}

  // Not after a failure.
  void start(const Work& work) { work_.push({.work = work}); }
  // Posts what there is room for, and tells what has become done.
  void advance();
  // Of WorkId::What::work and probe.
  void on_completion(const ibv_wc& wc, WorkId::What what);
  // Everything here and later ends with `why`; nothing more is moved.
  void fail(Status why);

  // Asks the peer's adapter for a sign of life.
  void ask();
  // Something is always different after things have moved.
  std::uint64_t progress() const { return probe_.answers() + completions_; }

  bool idle() const { return work_.empty(); }
  // For who waits until what was asked for by now is done: counts of both.
  std::uint64_t asked_for() const { return work_.end(); }
  std::uint64_t told() const { return work_.first(); }
  Status failure() const { return failure_; }  // ok: works
  const std::string& name() const { return setup_.name; }
  QueuePair& pair() { return *setup_.pair; }

 private:
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
  Status failure_ = Status::ok;
};

}  // namespace twinpath::gda::rma
