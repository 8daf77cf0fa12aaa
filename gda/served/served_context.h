#pragma once
// The queues of one create_context call, to all ranks spoken to, and their service by the engine.
//
// A queue that fails takes nobody along: its kernels get error CQEs and are let go, failed() is
// true.  When a peer dies or cannot be reached its queues fail and all kernels of the context are
// let go, because what they wait for may have been that peer's to send.  Where the team has a
// second port a queue that fails with its port moves there first (port_moves.h), and what is copied
// goes by its keys (soft_ways.h).
//
// Threads: make and destroy as gin.h says; turn and look_around are the engine's; failed() and
// settle() from any.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gda/context/context_cqs.h"
#include "gda/context/context_end.h"
#include "gda/context/context_memory.h"
#include "gda/gin.h"
#include "gda/memory/shared_tables.h"
#include "gda/served/back/counted_signals.h"
#include "gda/served/back/gpu_flush.h"
#include "gda/served/back/soft_back_end.h"
#include "gda/served/back/verbs_back_end.h"
#include "gda/served/front/counter_back_end.h"
#include "gda/served/front/doorbell_scan.h"
#include "gda/served/port_moves.h"
#include "gda/served/port_queues.h"
#include "gda/team/gin_core.h"
#include "gda/team/gpu_signals.h"

namespace twinpath::gda {

// Numbers that the device structures carry.
struct ContextNumbers {
  std::uint32_t first_queue = 0;  // QPN and CQN of queue 0; the others follow
  std::uint32_t signals_key = 0, counters_key = 0, sink_key = 0;
};

class ServedContext final : public GinContext, private EngineClient {
 public:
  // Collective.
  static Result<std::unique_ptr<ServedContext>> make(std::shared_ptr<GinCore> core,
                                                     const ContextSettings& settings);
  ~ServedContext() override;
  ServedContext(const ServedContext&) = delete;
  ServedContext& operator=(const ServedContext&) = delete;

  std::uint64_t device_handle() const override { return memory_->device_handle(); }
  bool failed() const override { return let_go_.failed(); }

  // Waits until nothing posted before the call is under way any more; queues that have not come
  // to that by the deadline are failed.  The engine has passed a round since the caller's change.
  void settle(RunClock& waited, std::int64_t limit);

 private:
  struct MainQueue {
    MainQueue(CqeWriter& cq, const VerbsBackEndSetup& back, const WorkQueueSetup& front,
              const WorkQueue::FindCq& find, std::optional<SoftBackEndSetup> soft);
    bool poll() { return soft != nullptr && soft->poll(); }
    bool resting() const { return queue.resting() && (soft == nullptr || soft->resting()); }
    void fail_all(Syndrome syndrome) {
      soft != nullptr ? soft->fail_all(syndrome) : back_end.fail_all(syndrome);
    }
    std::uint64_t issued() const { return soft != nullptr ? soft->issued() : back_end.issued(); }
    std::uint64_t finished() const {
      return soft != nullptr ? soft->finished() : back_end.finished();
    }
    // Everything before that number has ended, well or not.
    bool ended(std::uint64_t number) const {
      if (soft == nullptr) return back_end.finished() >= number || back_end.dead();
      return soft->finished() >= number || (soft->dead() && soft->quiet());
    }
    bool dead() const { return soft != nullptr ? soft->dead() : back_end.dead(); }
    void ask() { soft != nullptr ? soft->ask() : back_end.ask(); }
    bool unreachable() const {
      return back_end.unreachable() || (soft != nullptr && soft->unreachable());
    }

    VerbsBackEnd back_end;
    std::unique_ptr<SoftBackEnd> soft;  // in front of back_end; null in mode proxy
    WorkQueue queue;
    std::atomic<bool> give_up{false};  // asked by settle()
    bool failure_seen = false;
  };
  struct Companion {
    Companion(CqeWriter& cq, const WorkQueueSetup& front, const WorkQueue::FindCq& find)
        : queue(front, back_end, cq, find) {
      back_end.attach(queue);
    }
    CounterBackEnd back_end;
    WorkQueue queue;
    bool failure_seen = false;
  };
  // A rank, this one included.
  struct Peer {
    explicit Peer(int timeout_ms) : watch(timeout_ms) {}
    bool used = false;                     // spoken to
    bool direct_wanted = false;            // mode gda-cpu was planned,
    bool direct = false;                   // and holds,
    std::string not_direct;                // or why not
    std::unique_ptr<MappedTable> table;    // for gda-cpu; null in this process
    CountedSender::Target signals;         // its own, and where those without atomics go
    std::array<std::uint32_t, 2> rkeys{};  // of these, by its port
    PeerWatch watch;
  };
  using Bytes = std::vector<std::uint8_t>;

  ServedContext(std::shared_ptr<GinCore> core, const ContextShape& shape)
      : core_(std::move(core)), shape_(shape) {}
  // What each rank must know of this one.
  Result<std::vector<Bytes>> prepare(const ContextSettings& settings);
  PortQueues::Plan plan(const ContextSettings& settings) const;
  void make_second(const ContextSettings& settings);
  VerbsBackEndSetup back_end_setup(std::size_t pair) const;
  std::vector<bool> used() const;  // by rank
  const ibv_mr& signals_region() const { return signals_mr_ ? *signals_mr_ : ports_[0]->tables(); }
  // What each rank has said.
  Status connect(const std::vector<Bytes>& from);
  Status raise(int rank, Reader& in);
  Status add_keys(std::vector<KeyedMemory>& signals);
  Status make_queues();
  Status fill();
  // Maps a peer's signals, or finds why its queues must go by the fabric.
  void reach_signals(int rank, const TableOffer& offer);
  Bytes directness() const;
  void settle_modes(const std::vector<Bytes>& from);
  void log_peers() const;
  bool counted(int rank) const { return core_->plans[static_cast<std::size_t>(rank)].counted; }
  const WorkQueue* find_cq(std::uint32_t cqn) const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  bool used(int rank) const { return peer(rank).used; }
  int rank_of(std::size_t pair) const {
    return static_cast<int>(pair % static_cast<std::size_t>(shape_.ranks));
  }

  bool turn() override;
  bool visit_main(std::size_t pair, bool& moved);
  bool visit_companion(std::size_t pair, bool& moved);
  void look_around() override;
  void glance() override;
  void look_at(int rank, std::int64_t now);
  bool poll();
  // One batch of a port's completions: how many, below 0 an error.
  int poll(const PortQueues& port);
  void on_first(const ibv_wc& wc);
  bool flush();
  // Queues to that peer, or all.
  void fail_all(Syndrome syndrome, int peer = -1);
  void give_up_everywhere();
  void give_up();
  void report_late() const;
  void note_failures();
  void failed_queue(std::size_t pair, const char* which, bool& seen);

  const std::shared_ptr<GinCore> core_;
  const ContextShape shape_;
  std::vector<Peer> peers_;              // by rank
  std::unique_ptr<CountedInbox> inbox_;  // null: no peer sends signals without atomics
  std::unique_ptr<PortMoves> moves_;     // null: no queue can move to another port

  std::unique_ptr<ContextMemory> memory_;
  Owned<ibv_mr> signals_mr_;              // null: they are in the tables
  std::unique_ptr<PortQueues> ports_[2];  // the second: null where nothing goes over another
  std::vector<WayPorts> ways_;            // by pair
  std::unique_ptr<GpuFlush> flush_;       // null: none is ever needed
  ContextNumbers numbers_;
  std::unique_ptr<ContextCqs> cqs_;
  std::vector<std::unique_ptr<MainQueue>> mains_;
  std::vector<std::unique_ptr<Companion>> companions_;
  std::optional<DoorbellScan> scan_;           // mains first
  std::atomic<bool> asked_to_give_up_{false};  // with a MainQueue's give_up
  bool look_for_failures_ = false;
  LetGo let_go_;
  bool serving_ = false;
  bool peer_died_ = false;
};

}  // namespace twinpath::gda
