#pragma once
// One queue pair to one rank, or to the own one: work waits here until there is room, is posted as
// ordinary work requests, and becomes done in order.
//
// The last work request of each piece of work asks for a completion, and one completion is that of
// all before it, because RC completes in order.  Transfers larger than a message of the adapter go
// in pieces.
//
// One with a second path survives the queue pair that it is on (gda/served/back/moving.h).
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
#include "gda/served/back/gpu_flush.h"
#include "gda/served/back/moving.h"
#include "gda/served/back/path_blame.h"
#include "gda/served/back/ring.h"
#include "gda/served/back/work_request_id.h"
#include "gda/team/way_ports.h"
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

// A way to the rank, over one port.
struct QueuePath {
  QueuePair* pair = nullptr;  // null: there is none
  std::uint32_t scratch_lkey = 0;
  ProbeTarget probed;
};

struct QueueSetup {
  std::array<QueuePath, 2> paths;
  WayPorts ports;  // of these, whose keys of windows each takes
  Chain* chain = nullptr;
  GpuFlush* flush = nullptr;  // null: none is needed
  std::uint16_t number = 0;
  std::uint32_t slots = 1;  // work requests of its own that a queue pair holds
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  // Registered memory of scratch_bytes(): old values of atomics, signals that travel.
  std::uint8_t* scratch = nullptr;
  bool counted = false;
  std::atomic<bool>* failed = nullptr;  // raised with the first failure
  std::string name;                     // "RMA queue of rank 0 to rank 3 (...)", for messages
};

class Queue final : public MovingQueue {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static_assert(kScratchSlot >= SignalMessage::kBytes);
  static std::size_t scratch_bytes(std::uint32_t slots) { return slots * kScratchSlot; }

  explicit Queue(const QueueSetup& setup)
      : setup_(setup),
        marks_(setup.slots),
        paths_{setup.paths, 0, setup.paths[1].pair != nullptr, nullptr} {}

  // Not after a failure.
  void start(const Work& work) { work_.push({.work = work}); }
  // Posts what there is room for, and tells what has become done.
  void advance();
  // Of its work, a probe or the last send, over the path that it is on.
  void on_completion(const ibv_wc& wc) override;
  // Everything here and later ends with `why`; nothing more is moved.
  void fail(Status why);

  // Asks the peer's adapter for a sign of life.
  void ask();
  // Something is always different after things have moved.
  std::uint64_t progress() const { return probe_.answers() + completions_; }

  // See moving.h.
  bool dead() const override { return failure_ != Status::ok; }
  bool may_move() const override { return paths_.other_ready && !dead(); }
  int on() const override { return paths_.on; }
  int port() const { return setup_.ports.here(paths_.on); }
  void renew_other(QueuePair* pair) override {
    paths_.both[static_cast<std::size_t>(1 - paths_.on)].pair = pair;
  }
  void let_move(bool may, QueuePair* next) override {
    paths_.other_ready = may;
    paths_.next = next;
  }
  void stop() override;
  bool stopped() const override { return phase_ != Phase::serving; }
  bool drained() const override { return phase_ == Phase::drained; }
  bool resume(std::uint32_t taken) override;
  void skip() override;
  void fail_unreachable() override { fail(Status::remote); }
  UnderWay under_way() const override;

  bool idle() const { return work_.empty(); }
  // For who waits until what was asked for by now is done: counts of both.
  std::uint64_t asked_for() const { return work_.end(); }
  std::uint64_t told() const { return work_.first(); }
  Status failure() const { return failure_; }  // ok: works
  const std::string& name() const override { return setup_.name; }

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

  struct Paths {
    std::array<QueuePath, 2> both;
    int on = 0;
    bool other_ready = false;  // is a way
    QueuePair* next = nullptr;
  };

  bool chain(Item& item, std::uint64_t number);
  ibv_send_wr* next();
  void mark(ibv_send_wr& wr, std::uint64_t item, bool last);
  void fill_signal(ibv_send_wr& wr, const Work& work, std::uint32_t slot);
  void post();
  void tell(bool visible = false);
  void drain();
  void change_path();
  bool works() const { return !dead() && !stopped(); }
  QueuePath& path() { return paths_.both[static_cast<std::size_t>(paths_.on)]; }
  std::uint64_t id(std::uint64_t what) const { return WorkRequestId::of(setup_.number, what); }

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
  Paths paths_;
  PathBlame blame_;
  std::uint64_t signals_done_ = 0;  // of work that was told to be done
  Status failure_ = Status::ok;
};

}  // namespace twinpath::gda::rma
