// See gpu_signals.h.
#include "gda/team/gpu_signals.h"

#include <algorithm>
#include <cerrno>

#include "gda/memory/retired.h"
#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"
#include "plugin/gpu/dmabuf.h"

namespace twinpath::gda {
namespace {

constexpr std::uint64_t kPage = 4096;

bool on_gpu(const GinCore& core) {
  return core.gpu >= 0 && !core.verbs().ordered &&
         std::none_of(core.plans.begin(), core.plans.end(), [](const PeerPlan& plan) {
           return plan.counted || plan.mode == ModeChoice::gda_cpu;  // a CPU adds
         });
}

ibv_mr* register_block(const GinCore& core, const DeviceBlock& block) {
  const Verbs& verbs = core.verbs();
  ibv_pd* const pd = core.rail.port.adapter->pd;
  const std::uint64_t address = block.device_address();
  constexpr unsigned kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (verbs.reg_dmabuf_mr != nullptr && gpu::exports_dmabufs()) {
    const UniqueFd fd(gpu::export_dmabuf(core.gpu, address, block.bytes()));
    if (fd) {
      ibv_mr* mr =
          verbs.reg_dmabuf_mr(pd, 0, block.bytes(), address, fd.get(), static_cast<int>(kAccess));
      if (mr != nullptr) return mr;
    }
  }
  errno = 0;
  return verbs.reg_mr_iova2(pd, reinterpret_cast<void*>(address), block.bytes(), address, kAccess);
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
  auto block = DeviceBlock::make(core.gpu, Place::gpu, (bytes + kPage - 1) / kPage * kPage);
  if (!block) return block.status();
  signals.block = std::move(block).take();
  if (ibv_mr* mr = register_block(core, *signals.block); mr != nullptr) {
    signals.mr = own(mr, core.verbs().dereg_mr);
    return signals;
  }
  TP_INFO(net, "%s cannot register %zu bytes of GPU %d for signals: %s",
          core.rail.port.port->name.c_str(), signals.block->bytes(), core.gpu,
          reason_text(errno).c_str());
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
