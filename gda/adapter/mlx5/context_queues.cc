#include "gda/adapter/mlx5/context_queues.h"

#include "plugin/base/log.h"

namespace twinpath::gda::mlx5 {

Result<std::unique_ptr<ContextQueues>> ContextQueues::make(const Adapter& adapter,
                                                           const ContextQueuesSetup& setup) {
  const std::vector<std::string> lacks = missing(adapter.capabilities(), setup.log_depth);
  for (const std::string& what : lacks)
    TP_WARN("%s cannot serve queues that kernels fill: %s; TWINPATH_MODE=proxy goes without",
            adapter.name(), what.c_str());
  if (!lacks.empty()) return Status::unsupported;
  if (setup.companions && !adapter.capabilities().waits)
    TP_WARN(
        "%s does not say that its queues can wait for each other (cd), which counters use; tried "
        "all the same, as NCCL's own transport does; if counters do not rise, TWINPATH_MODE=proxy "
        "goes without",
        adapter.name());

  std::unique_ptr<ContextQueues> made(new ContextQueues(setup));
  auto page = DoorbellPage::make(adapter);
  if (!page) return page.status();
  made->page_ = std::make_unique<DoorbellPage>(std::move(page).take());
  TP_TRY(made->try_gpu_doorbell(adapter));  // who rings decides where the records lie
  BlockPlan plan;
  plan.queues = made->queues();
  plan.log_depth = setup.log_depth;
  plan.collapsed = setup.collapsed;
  auto memory =
      QueueMemory::make(adapter, setup.gpu, plan, {made->setup_.rung_by_cpu, setup.exporter});
  if (!memory) return memory.status();
  made->memory_ = std::move(memory).take();
  TP_TRY(made->make_queues(adapter));
  return made;
}

Status ContextQueues::try_gpu_doorbell(const Adapter& adapter) {
  if (setup_.gpu < 0 || setup_.rung_by_cpu) return Status::ok;
  gpu_doorbell_ = GpuDoorbell::map(setup_.gpu, page_->bell(), setup_.real_page, why_by_cpu_);
  if (gpu_doorbell_ != nullptr) return Status::ok;
  if (setup_.rung_by_gpu) {
    TP_WARN("%s: %s; NCCL_GIN_GDAKI_NIC_HANDLER=2 lets no CPU thread ring instead, 0 would",
            adapter.name(), why_by_cpu_.c_str());
    return Status::unsupported;
  }
  setup_.rung_by_cpu = true;
  TP_INFO(net, "%s: %s; a CPU thread rings", adapter.name(), why_by_cpu_.c_str());
  return Status::ok;
}

std::shared_ptr<void> ContextQueues::end(std::unique_ptr<ContextQueues> queues) {
  struct Rest {  // destroyed in reverse
    std::vector<std::unique_ptr<DeviceBlock>> blocks;
    std::unique_ptr<DoorbellPage> page;
    std::unique_ptr<GpuDoorbell> bell;
  };
  auto rest = std::make_shared<Rest>();
  queues->queues_.clear();
  rest->blocks = queues->memory_->take();
  rest->page = std::move(queues->page_);
  rest->bell = std::move(queues->gpu_doorbell_);
  return rest;
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
  v.record = memory_->record(queue) + sizeof(std::uint32_t);
  v.bell = page_->bell();
  if (gpu_doorbell_ != nullptr) v.gpu_doorbell = gpu_doorbell_->address();
  if (setup_.gpu < 0) v.gpu_doorbell = reinterpret_cast<std::uintptr_t>(v.bell);
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
