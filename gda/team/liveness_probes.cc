// See liveness_probes.h.
#include "gda/team/liveness_probes.h"

#include <array>

#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<LivenessProbes>> LivenessProbes::make(const GinCore& core,
                                                             const std::vector<bool>& asked) {
  std::unique_ptr<LivenessProbes> made(new LivenessProbes(core));
  made->peers_.resize(asked.size());
  const Verbs& verbs = core.verbs();
  auto cq =
      make_completion_queue(verbs, core.rail.port.adapter->context, asked.size(), core.owner());
  if (!cq) return cq.status();
  made->cq_ = std::move(cq).take();
  QueueSettings settings = path_settings(core.config(), core.settings);
  settings.access = IBV_ACCESS_REMOTE_WRITE;
  settings.recv_depth = 0;
  settings.send_depth = 1;
  for (int rank = 0; rank < core.ranks(); ++rank) {
    if (!asked[static_cast<std::size_t>(rank)] || rank == core.rank()) continue;
    auto pair = QueuePair::make(verbs, core.rail, made->cq_.get(), settings, core.limits);
    if (!pair) return pair.status();
    made->peer(rank).pair = std::move(pair).take();
  }
  return made;
}

Status LivenessProbes::join(int rank, const QueueEnd& far, std::uint32_t key) {
  peer(rank).key = key;
  return peer(rank).pair->raise(far, core_.mesh->peer_text(rank), core_.mesh->on_this_host(rank));
}

void LivenessProbes::ask(int rank) {
  Peer& p = peer(rank);
  if (p.pair == nullptr || p.unanswered) return;
  p.probe.ask(p.pair->qp(), static_cast<std::uint64_t>(rank), {0, p.key});
}

void LivenessProbes::look() {
  std::array<ibv_wc, 16> wcs;
  for (;;) {
    const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
    for (int i = 0; i < n; ++i) {
      const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
      if (wc.wr_id >= peers_.size()) continue;
      Peer& p = peers_[wc.wr_id];
      if (!p.probe.answered(wc, core_.mesh->peer_text(static_cast<int>(wc.wr_id))))
        p.unanswered = true;
    }
    if (n < static_cast<int>(wcs.size())) return;
  }
}

}  // namespace twinpath::gda
