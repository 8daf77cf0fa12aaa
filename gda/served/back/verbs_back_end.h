#pragma once
// Executes one queue's operations as ordinary work requests on an RC queue pair, so on any adapter
// that verbs know: real, soft-RoCE or the soft HCA.
//
// Work requests of one scan are chained and posted with one call (send_chain.h).  A NOP is nothing
// on the wire: it is done with what was posted before it.  Transfers larger than a message of the
// adapter go in pieces.  What a READ brings to GPU memory may come after its completion: that, a
// DUMP behind it and all later ones are reported after a flush.
//
// One that keeps its operations survives its first path's queue pair: stop(), then, once both ends
// have stopped theirs, resume().  Between the two nothing is taken, and kernels wait longer.
//
// Threads: the engine's, except issued(), finished() and dead(), from any.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/served/back/counted_signals.h"
#include "gda/served/back/gpu_flush.h"
#include "gda/served/back/moving.h"
#include "gda/served/back/path_blame.h"
#include "gda/served/back/replay.h"
#include "gda/served/back/send_chain.h"
#include "gda/served/back/work_request_id.h"
#include "gda/served/front/back_end.h"
#include "gda/served/front/work_queue.h"
#include "gda/team/way_ports.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda {

// A way to the peer, over one port.
struct VerbsPath {
  QueuePair* pair = nullptr;
  std::uint32_t scratch_lkey = 0;
  std::uint32_t rkey = 0;  // of the peer's signals and rows
};

struct VerbsBackEndSetup {
  VerbsPath first;
  VerbsPath second;  // without a queue pair: there is none
  WayPorts ports;    // of the two, whose keys of windows each takes
  // Operations that are remembered for it, a power of two: all under way; 0: none moves there.
  std::uint32_t kept = 0;
  std::uint32_t slots = 1;  // work requests that the queue pair holds
  std::uint16_t tag = 0;    // comes back with each completion: WorkRequestId::pair()
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  // Registered memory for inline data and for old values of atomics, slots * kScratchSlot bytes;
  // pinned, because copy engines of the soft HCA read it.
  std::uint8_t* scratch = nullptr;
  bool post_inline =
      false;  // let the work request itself hold the data, where the queue pair takes it
  std::optional<CountedSender::Target> counted;  // signals without atomics
  std::uint64_t probed = 0;   // address; the queue pair holds one work request more, for probes
  GpuFlush* flush = nullptr;  // null: none is needed
  std::string name;           // "queue to rank 3", for messages
};

class VerbsBackEnd final : public BackEnd, public MovingQueue {
 public:
  static constexpr std::size_t kScratchSlot = 32;
  static_assert(kScratchSlot >= kMaxInline && kScratchSlot >= sizeof(CountedEntry));

  explicit VerbsBackEnd(const VerbsBackEndSetup& setup);
  // Before the first scan.
  void attach(WorkQueue& queue) { queue_ = &queue; }

  // Whether its signals are counted.
  bool counts() const { return counted_.has_value(); }
  Issued issue(std::uint64_t index, const Operation& operation) override;
  void flush() override;

  // Without `kept`: what begins goes over that path.  Nothing is under way.
  void take(int path) { paths_.on = path; }
  // A completion whose wr_id has this back end's tag as its pair.
  void on_completion(const ibv_wc& wc) override;
  // The flush has come further: reports what waited for it.
  void settle();
  // The peer is gone, or somebody will not wait any longer: nothing more is moved.
  void fail_all(Syndrome syndrome);

  // See moving.h; each the engine's.
  bool may_move() const override { return paths_.other_ready && !dead(); }
  int on() const override { return paths_.on; }
  void renew_other(QueuePair* pair) override { paths_.both[1 - paths_.on].pair = pair; }
  void let_move(bool may, QueuePair* next) override {
    paths_.other_ready = may;
    paths_.next = next;
  }
  void stop() override;
  bool stopped() const override { return phase_ == Phase::stopped || phase_ == Phase::drained; }
  bool drained() const override { return phase_ == Phase::drained; }
  bool resume(std::uint32_t taken) override;
  // More of what must go again, as there is room.
  bool replaying() const { return phase_ == Phase::replaying; }
  void replay();
  void skip() override;
  void fail_unreachable() override;
  UnderWay under_way() const override;

  // Asks the peer's adapter for a sign of life.  The engine's.
  void ask();
  std::uint64_t answers() const { return probe_.answers(); }

  // Counts of operations, for those who wait until some have ended.
  std::uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  std::uint64_t finished() const { return finished_.load(std::memory_order_acquire); }
  bool dead() const override { return dead_.load(std::memory_order_acquire); }
  // Dead, and not for a kernel's own wrong work request: the peer, or the way to it, is gone.  The
  // engine's.
  bool unreachable() const { return unreachable_; }
  const std::string& name() const override { return setup_.name; }

 private:
  enum class Phase : std::uint8_t { serving, stopped, drained, replaying };

  struct Paths {
    VerbsPath both[2];
    int on = 0;
    bool other_ready = false;  // is a way
    QueuePair* next = nullptr;
  };
  // WQEs before `done` have completed and wait for a flush; 0: none.
  struct Held {
    std::uint64_t done = 0, ticket = 0;
  };

  const VerbsPath& path() const { return paths_.both[paths_.on]; }
  const Operation& kept(std::uint64_t index) const { return kept_[index & (kept_.size() - 1)]; }
  Issued send(std::uint64_t index, const Operation& operation);
  void arrived(const SendChain::Mark& mark);
  void nothing(std::uint64_t index);
  void add(std::uint64_t index, const Operation& operation, std::uint64_t offset,
           std::uint32_t bytes, bool last);
  void fill(ibv_send_wr& wr, ibv_sge& sge, const Operation& operation, std::uint64_t offset,
            std::uint32_t bytes);
  void post();
  void drain();
  void change_path();
  void finish(std::uint64_t done);
  void die(std::uint64_t index, Syndrome syndrome);

  const VerbsBackEndSetup setup_;
  WorkQueue* queue_ = nullptr;
  std::optional<CountedSender> counted_;
  SendChain chain_;
  Held held_, later_;  // what has completed since goes to later_
  LivenessProbe probe_;
  std::vector<Operation> kept_;  // ring of those under way; empty without a second path
  Phase phase_ = Phase::serving;
  Paths paths_;
  PathBlame blame_;
  std::uint64_t again_ = 0;           // next to go again
  ReplayRule rule_;                   // of these
  std::uint64_t signals_done_ = 0;    // of operations that have finished
  std::uint64_t partial_index_ = 0;   // operation of which a part is posted...
  std::uint64_t partial_offset_ = 0;  // ...up to here; 0: none
  std::atomic<std::uint64_t> issued_{0}, finished_{0};
  std::atomic<bool> dead_{false};
  bool unreachable_ = false;
};

}  // namespace twinpath::gda
