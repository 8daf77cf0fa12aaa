#pragma once
// Whether the adapters of peers still answer, where kernels and adapters speak to each other and
// nothing of it is seen here: a queue pair of our own to each peer, and a probe over it when the
// peer's control connection is silent.
//
// Threads: made and joined by one thread, then one at a time.
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/team/gin_core.h"
#include "plugin/rdma/liveness_probe.h"

namespace twinpath::gda {

class LivenessProbes {
 public:
  // To each rank of `asked` but the own one.
  static Result<std::unique_ptr<LivenessProbes>> make(const GinCore& core,
                                                      const std::vector<bool>& asked);

  // What that rank must know of its queue pair; of a rank that is asked.
  QueueEnd end(int rank) const { return peer(rank).pair->end(); }
  // `key`: any of that rank's memory.
  Status join(int rank, const QueueEnd& far, std::uint32_t key);
  bool asks(int rank) const { return peer(rank).pair != nullptr; }

  void ask(int rank);
  // Takes what has been answered.
  void look();
  std::uint64_t answers(int rank) const { return peer(rank).probe.answers(); }
  // The adapter there did not answer; logged once.
  bool unanswered(int rank) const { return peer(rank).unanswered; }

 private:
  struct Peer {
    std::unique_ptr<QueuePair> pair;  // null: not asked
    std::uint32_t key = 0;
    LivenessProbe probe;
    bool unanswered = false;
  };
  explicit LivenessProbes(const GinCore& core) : core_(core) {}
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  const GinCore& core_;
  Owned<ibv_cq> cq_;
  std::vector<Peer> peers_;
};

}  // namespace twinpath::gda
