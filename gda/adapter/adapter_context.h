#pragma once
// A context whose queues an adapter serves (modes gda and gda-cpu on mlx5): kernels' work requests
// carry the fabric's own keys, and nothing here sees them.  A thread of ours rings where the GPU
// may not, and looks a few times a second whether queues and peers still live.
//
// All queues of the context are of this kind: an adapter's atomics are atomic among themselves, not
// with those of a CPU, so a signal word has one kind of writer.
//
// A queue that fails takes nobody along: its kernels are let go, failed() is true.  When its
// adapter says that the peer does not answer, or a peer dies, all kernels of the context are let
// go, because what they wait for may have been that peer's to send.  At the peer the other end of
// the queue fails, too.
//
// Threads: make and destroy as gin.h says; turn and look_around are the engine's; failed() from
// any.
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/adapter/mlx5/doorbell_ringer.h"
#include "gda/adapter/mlx5/error_look.h"
#include "gda/adapter/mlx5/queue_watch.h"
#include "gda/context/context_end.h"
#include "gda/context/context_memory.h"
#include "gda/gin.h"
#include "gda/team/adapter_side.h"
#include "gda/team/engine.h"
#include "gda/team/gin_core.h"
#include "gda/team/liveness_probes.h"

namespace twinpath::gda {

class AdapterContext final : public GinContext, private EngineClient {
 public:
  // Collective.  core->adapter is there.
  static Result<std::unique_ptr<AdapterContext>> make(std::shared_ptr<GinCore> core,
                                                      const ContextSettings& settings);
  ~AdapterContext() override;
  AdapterContext(const AdapterContext&) = delete;
  AdapterContext& operator=(const AdapterContext&) = delete;

  std::uint64_t device_handle() const override { return memory_->device_handle(); }
  bool failed() const override { return let_go_.failed(); }

 private:
  using Bytes = std::vector<std::uint8_t>;
  // Signals, counters, or the sink of fetched values: a part of the tables, from address 0.
  struct Table {
    Owned<ibv_mr> mr;
    std::uint32_t lkey() const { return mr ? mr->lkey : 0; }
    std::uint32_t rkey() const { return mr ? mr->rkey : 0; }
  };

  AdapterContext(std::shared_ptr<GinCore> core, const ContextShape& shape)
      : core_(std::move(core)), shape_(shape) {}
  // What each rank must know of this one.
  Result<std::vector<Bytes>> prepare(const ContextSettings& settings);
  Status register_tables();
  Status register_table(Table& table, std::uint64_t address, std::uint64_t bytes);
  Status make_queues(const ContextSettings& settings);
  // What each rank has said.
  Status connect(const std::vector<Bytes>& from);
  Status fill(std::vector<std::uint32_t> signal_keys);
  void log_peers() const;
  bool used(int rank) const { return used_[static_cast<std::size_t>(rank)]; }
  int rank_of(std::size_t queue) const {
    return static_cast<int>(queue % static_cast<std::size_t>(shape_.ranks));
  }

  bool turn() override;
  void look_around() override;
  bool needs_turns() const override { return ringer_ != nullptr || let_go_.given_up(); }
  void look_at_queues(std::int64_t now, int most);
  void failed_queue(std::size_t queue);
  void told(const mlx5::ErrorLook::Cause& cause);
  void look_at(int rank, std::int64_t now);
  void give_up();

  const std::shared_ptr<GinCore> core_;
  const ContextShape shape_;
  std::vector<bool> used_;
  std::unique_ptr<ContextMemory> memory_;
  Table signals_, counters_, sink_;
  std::unique_ptr<mlx5::ContextQueues> queues_;
  std::unique_ptr<mlx5::DoorbellRinger> ringer_;  // null: kernels ring
  std::unique_ptr<mlx5::QueueWatch> watch_;
  std::unique_ptr<mlx5::ErrorLook> errors_;
  std::unique_ptr<LivenessProbes> probes_;
  std::vector<PeerWatch> watches_;  // by rank
  bool serving_ = false;
  LetGo let_go_;
};

}  // namespace twinpath::gda
