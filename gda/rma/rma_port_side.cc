// See rma_port_side.h.
#include "gda/rma/rma_port_side.h"

#include <algorithm>

#include "gda/rma/rma_inbox.h"
#include "plugin/base/log.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda::rma {

Result<std::unique_ptr<PortSide>> PortSide::make(const TeamCore& team, const Where& where,
                                                 const Plan& plan) {
  std::unique_ptr<PortSide> made(new PortSide(where));
  TP_TRY(made->register_memory(
      team, plan.memory, plan.bytes,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
      "for work requests"));
  TP_TRY(made->make_pairs(team, plan));
  return made;
}

Status PortSide::make_pairs(const TeamCore& team, const Plan& plan) {
  const AdapterLimits& limits = where_.limits;
  const auto pairs =
      static_cast<std::uint32_t>(std::count(plan.used.begin(), plan.used.end(), true));
  const std::uint32_t more = plan.receives + 2 * plan.spare;
  const std::uint32_t entries = static_cast<std::uint32_t>(limits.max_cqes) / pairs;
  const auto requests = static_cast<std::uint32_t>(limits.max_work_requests);
  slots_ = std::min(
      {plan.slots, requests - std::min(requests, plan.spare), entries - std::min(entries, more)});
  if (slots_ == 0) {
    TP_WARN("%s has too few completion queue entries (%d) for %u queues; use fewer contexts",
            where_.rail.port.port->name.c_str(), limits.max_cqes, pairs);
    return Status::no_memory;
  }
  auto cq = make_completion_queue(team.verbs(), where_.rail.port.adapter->context,
                                  pairs * (slots_ + more), team.owner());
  if (!cq) return cq.status();
  cq_ = std::move(cq).take();
  QueueSettings settings = plan.queue;
  settings.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    (limits.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  settings.recv_depth = plan.receives == 0 ? 0 : static_cast<int>(plan.receives + plan.spare);
  settings.send_depth = static_cast<int>(slots_ + plan.spare);
  make_room(plan.used.size(), settings);
  for (std::size_t q = 0; q < pairs_.size(); ++q) {
    if (!plan.used[q]) continue;
    auto pair = QueuePair::make(team.verbs(), where_.rail, cq_.get(), settings, limits);
    if (!pair) return pair.status();
    pairs_[q].pair = std::move(pair).take();
  }
  return Status::ok;
}

Status PortSide::give_receives(std::size_t queue, ibv_qp* qp) const {
  return inbox_->prepare(queue, port_, qp);
}

void PortSide::stop_all() {
  for (std::size_t q = 0; q < size(); ++q)
    for (QueuePair* each : {pair(q), next(q)})
      if (each != nullptr) each->stop();
}

}  // namespace twinpath::gda::rma
