// See port_queues.h.
#include "gda/served/port_queues.h"

#include <algorithm>

#include "gda/served/back/counted_signals.h"
#include "gda/served/back/verbs_back_end.h"
#include "plugin/base/log.h"
#include "plugin/rdma/queue_pair.h"

namespace twinpath::gda {

Result<std::unique_ptr<PortQueues>> PortQueues::make(const GinCore& core, const Where& where,
                                                     const ContextShape& shape,
                                                     const ContextMemory& memory,
                                                     const Plan& plan) {
  std::unique_ptr<PortQueues> made(new PortQueues(where));
  TP_TRY(made->register_memory(core, memory.tables(), memory.tables_bytes(),
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   (where.limits.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0),
                               "of signals and counters"));
  TP_TRY(made->make_cq(core, shape, plan));
  TP_TRY(made->make_pairs(core, shape, plan));
  return made;
}

Status PortQueues::make_cq(const GinCore& core, const ContextShape& shape, const Plan& plan) {
  const std::size_t pairs =
      static_cast<std::size_t>(std::count(plan.used.begin(), plan.used.end(), true) + 1) *
      static_cast<std::size_t>(shape.contexts);  // one more: the far end to oneself
  const std::uint32_t more = plan.receives + 1 + 2 * plan.spare;  // one for the liveness probe
  const std::uint32_t entries =
      static_cast<std::uint32_t>(where_.limits.max_cqes) / static_cast<std::uint32_t>(pairs);
  slots_ = std::min({shape.depth,
                     static_cast<std::uint32_t>(where_.limits.max_work_requests) - 1 - plan.spare,
                     entries - std::min(entries, more)});
  if (slots_ == 0) {
    TP_WARN("%s has too few completion queue entries (%d) for %zu queues; use fewer contexts",
            where_.rail.port.port->name.c_str(), where_.limits.max_cqes, pairs);
    return Status::no_memory;
  }
  auto cq = make_completion_queue(core.verbs(), where_.rail.port.adapter->context,
                                  pairs * (slots_ + more), core.owner());
  if (!cq) return cq.status();
  cq_ = std::move(cq).take();
  return Status::ok;
}

Status PortQueues::make_pairs(const GinCore& core, const ContextShape& shape, Plan plan) {
  plan.queue.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      (where_.limits.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  plan.queue.recv_depth = static_cast<int>(plan.receives + plan.spare);
  plan.queue.send_depth = static_cast<int>(slots_ + 1 + plan.spare);
  plan.queue.inline_bytes = VerbsBackEnd::kScratchSlot;
  const auto make = [&] {
    return QueuePair::make(core.verbs(), where_.rail, cq_.get(), plan.queue, where_.limits);
  };
  make_room(shape.pairs(), plan.queue);
  for (std::size_t p = 0; p < shape.pairs(); ++p) {
    const std::size_t rank = p % plan.used.size();
    if (!plan.used[rank]) continue;
    auto pair = make();
    if (!pair) return pair.status();
    pairs_[p].pair = std::move(pair).take();
    if (rank != static_cast<std::size_t>(core.rank())) continue;
    auto far = make();
    if (!far) return far.status();
    pairs_[p].far = std::move(far).take();
  }
  return Status::ok;
}

Status PortQueues::give_receives(std::size_t p, ibv_qp* qp) const {
  return CountedInbox::prepare(p, qp, CountedInbox::kReceives + 1);
}

}  // namespace twinpath::gda
