// See loop_pair.h.
#include "gda/served/back/loop_pair.h"

#include <algorithm>
#include <utility>

#include "plugin/rdma/path.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<LoopPair>> LoopPair::make(const TeamCore& team, int port, const Use& use) {
  std::unique_ptr<LoopPair> made(new LoopPair(team, port, use));
  // Twice: what a queue pair had comes back beside what the next one does.
  auto cq = make_completion_queue(team.verbs(), made->rail_.port.adapter->context, 2 * use.depth,
                                  team.owner());
  if (!cq) return cq.status();
  made->cq_ = std::move(cq).take();
  auto pair = made->make_pair(made->rail_);
  if (!pair) return pair.status();
  made->pair_ = std::move(pair).take();
  return made;
}

Result<std::unique_ptr<QueuePair>> LoopPair::make_pair(const Rail& rail) const {
  QueueSettings settings = path_settings(team_.config(), team_.settings);
  settings.access = use_.access;
  settings.recv_depth = 0;
  settings.send_depth = static_cast<int>(use_.depth);
  auto pair = QueuePair::make(team_.verbs(), rail, cq_.get(), settings, limits_);
  if (!pair) return pair.status();
  TP_TRY((*pair)->raise((*pair)->end(), "itself", true));
  return pair;
}

int LoopPair::poll(std::span<ibv_wc> wcs) {
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(wcs.size()), wcs.data());
  if (n <= 0) return n;
  // Others are of the one before.
  const auto end = std::remove_if(wcs.begin(), wcs.begin() + n,
                                  [this](const ibv_wc& wc) { return wc.qp_num != qp()->qp_num; });
  return static_cast<int>(end - wcs.begin());
}

bool LoopPair::stop() {
  const bool confirmed = pair_->stop();
  broken_.store(true, std::memory_order_release);  // partner: renew()
  return confirmed;
}

Status LoopPair::renew() {
  if (!broken() || has_renewed()) return Status::ok;
  std::string why;
  const auto now = team_.devices->live(rail_.port, why);
  if (!now) return now.status();
  auto pair = make_pair(Rail::of(rail_.port, *now));
  if (!pair) return pair.status();
  renewed_ = std::move(pair).take();
  has_renewed_.store(true, std::memory_order_release);  // partner: take_renewed()
  return Status::ok;
}

void LoopPair::take_renewed() {
  std::swap(pair_, renewed_);  // the one before goes when another is made
  broken_.store(false, std::memory_order_release);
  has_renewed_.store(false, std::memory_order_release);
}

}  // namespace twinpath::gda
