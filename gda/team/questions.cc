// See questions.h.
#include "gda/team/questions.h"

#include <array>

#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"
#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<Questions>> Questions::make(const GinCore& core,
                                                   const std::vector<bool>& asked) {
  std::unique_ptr<Questions> made(new Questions(core));
  made->peers_.resize(asked.size());
  const Verbs& verbs = core.verbs();
  auto cq = make_completion_queue(verbs, core.rail.port.adapter->context, asked.size());
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

Status Questions::join(int rank, const QueueEnd& far, std::uint32_t key) {
  peer(rank).key = key;
  return peer(rank).pair->raise(far, core_.mesh->peer_text(rank), core_.mesh->on_this_host(rank));
}

void Questions::ask(int rank) {
  Peer& p = peer(rank);
  if (p.pair == nullptr || p.asking || p.unanswered) return;
  ibv_send_wr wr{};
  wr.wr_id = static_cast<std::uint64_t>(rank);
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.rkey = p.key;
  ibv_send_wr* bad = nullptr;
  p.asking = ibv_post_send(p.pair->qp(), &wr, &bad) == 0;
}

void Questions::look() {
  std::array<ibv_wc, 16> wcs;
  for (;;) {
    const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
    for (int i = 0; i < n; ++i) {
      const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
      if (wc.wr_id >= peers_.size()) continue;
      Peer& p = peers_[wc.wr_id];
      p.asking = false;
      if (wc.status == IBV_WC_SUCCESS) {
        ++p.answers;
        continue;
      }
      p.unanswered = true;
      TP_WARN("%s: the peer's host is silent on the control connection, and its adapter, too: %s",
              core_.mesh->peer_text(static_cast<int>(wc.wr_id)).c_str(),
              completion_hint(wc.status));
    }
    if (n < static_cast<int>(wcs.size())) return;
  }
}

}  // namespace twinpath::gda
