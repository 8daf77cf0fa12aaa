// See gpu_signals.h.
#include "gda/team/gpu_signals.h"

#include <algorithm>

#include "gda/memory/retired.h"
#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/fabric/registration.h"

namespace twinpath::gda {
namespace {

bool on_gpu(const GinCore& core) {
  return core.gpu >= 0 && !core.verbs().ordered &&
         std::none_of(core.plans.begin(), core.plans.end(), [](const PeerPlan& plan) {
           return plan.counted || plan.mode == ModeChoice::gda_cpu;  // a CPU adds
         });
}

// The way of windows in that GPU's memory, which signals must not pass.
RangeMr register_block(const GinCore& core, const DeviceBlock& block) {
  RangeRequest range;
  range.address = range.iova = block.device_address();
  range.bytes = block.bytes();
  range.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  range.data_direct = !core.rail.port.port->data_direct.empty();
  range.exported = range.by_address = true;
  return register_gpu_range(core.verbs(), core.rail.port.adapter->pd, range);
}

// Kernels may run, and freeing GPU memory would wait for them.
void free_later(std::unique_ptr<DeviceBlock> block) {
  const std::shared_ptr<DeviceBlock> kept = std::move(block);
  const auto last = std::make_shared<std::shared_ptr<DeviceBlock>>(kept);
  (void)Retired::of_process().put({.free = [last] { last->reset(); }, .release = {}});
}

}  // namespace

Result<GpuSignals> place_signals(GinCore& core, std::uint64_t bytes) {
  GpuSignals signals;
  if (bytes == 0 || !on_gpu(core)) return signals;
  auto block = DeviceBlock::make(core.gpu, Place::gpu, page_end(bytes));
  if (!block) return block.status();
  signals.block = std::move(block).take();
  const RangeMr made = register_block(core, *signals.block);
  if (made.mr != nullptr) {
    signals.mr = own(made.mr, core.verbs().dereg_mr);
    return signals;
  }
  TP_INFO(net, "%s cannot register %zu bytes of GPU %d for signals: %s",
          core.rail.port.port->name.c_str(), signals.block->bytes(), core.gpu,
          made.refused.c_str());
  free_later(std::move(signals.block));
  core.signals_in_host = true;
  warn_of_host_signals(core);
  return signals;
}

void warn_of_host_signals(GinCore& core) {
  if (!core.signals_in_host || core.told_of_signals || !core.flush_sources.any()) return;
  core.told_of_signals = true;
  TP_WARN(
      "%s takes windows in memory of GPU %d, but not a table of ours there, so signals lie in host "
      "memory and kernels may see them before their data; load nvidia_peermem or update the GPU's "
      "driver, or set TWINPATH_GIN_ATOMICS=0 on all ranks, which is slower",
      core.rail.port.port->name.c_str(), core.gpu);
}

}  // namespace twinpath::gda
