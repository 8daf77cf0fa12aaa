#include "gda/mlx5/context_queues.h"

#include "plugin/base/log.h"

namespace twinpath::gda::mlx5 {

Result<std::unique_ptr<ContextQueues>> ContextQueues::make(const Adapter& adapter,
                                                           const ContextQueuesSetup& setup) {
  const std::vector<std::string> lacks =
      missing(adapter.capabilities(), setup.log_depth, setup.companions);
  for (const std::string& what : lacks)
    TP_WARN("%s cannot serve queues that kernels fill: %s; TWINPATH_MODE=proxy goes without",
            adapter.name(), what.c_str());
  if (!lacks.empty()) return Status::unsupported;

  std::unique_ptr<ContextQueues> made(new ContextQueues(setup));
  BlockPlan plan;
  plan.queues = made->queues();
  plan.log_depth = setup.log_depth;
  plan.collapsed = setup.collapsed;
  auto memory = QueueMemory::make(adapter, setup.gpu, plan, {!setup.rung_by_cpu, setup.exporter});
  if (!memory) return memory.status();
  made->memory_ = std::move(memory).take();
  auto page = DoorbellPage::make(adapter);
  if (!page) return page.status();
  made->page_ = std::make_unique<DoorbellPage>(std::move(page).take());
  TP_TRY(made->make_queues(adapter));
  return made;
}

Status ContextQueues::make_queues(const Adapter& adapter) {
  queues_.resize(queues());
  for (std::size_t q = 0; q < queues(); ++q) {
    const std::string& peer = setup_.peers[q % mains()];
    if (peer.empty()) continue;
    const bool companion = q >= mains();
    auto queue =
        AdapterQueue::make(adapter, *memory_, *page_, q, setup_.settings, companion,
                           (companion ? "companion of the queue to " : "queue to ") + peer);
    if (!queue) return queue.status();
    queues_[q] = std::move(queue).take();
  }
  return Status::ok;
}

QueueView ContextQueues::view(std::size_t queue) const {
  const BlockPlan& plan = memory_->plan();
  QueueView v;
  v.sq = memory_->address(plan.sq(queue));
  v.cqes = memory_->address(plan.cq(queue));
  v.record = memory_->address(plan.qp_record(queue)) + sizeof(std::uint32_t);
  v.bell = page_->bell();
  v.qpn = queues_[queue]->qpn();
  v.cqn = queues_[queue]->cqn();
  return v;
}

Status ContextQueues::raise(std::size_t main, const QueueEnd* far, bool here) {
  TP_TRY(far == nullptr ? queues_[main]->loop() : queues_[main]->raise(*far, here));
  return setup_.companions ? queues_[mains() + main]->loop() : Status::ok;
}

Status ContextQueues::stop(std::size_t main) {
  const Status first = queues_[main]->stop();
  if (!setup_.companions) return first;
  const Status second = queues_[mains() + main]->stop();
  return first != Status::ok ? first : second;
}

}  // namespace twinpath::gda::mlx5
