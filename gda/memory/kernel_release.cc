// See kernel_release.h.
#include "gda/memory/kernel_release.h"

#include "plugin/base/wait_within.h"

namespace twinpath::gda {

KernelRelease::KernelRelease(int gpu, DeviceBlock& block, std::vector<std::size_t> consumed,
                             std::uint64_t* source)
    : gpu_(gpu),
      block_(block),
      consumed_(std::move(consumed)),
      source_(source),
      jobs_(consumed_.size()),
      pending_(std::make_unique<std::atomic<int>>(0)) {
  *source_ = kConsumedAll;
  if (auto reach = reach_block(gpu_, block_)) reach_ = std::move(reach).take();
}

void KernelRelease::release(std::size_t queue) {
  Job& job = jobs_[queue];
  if (job.begun) return;
  job.begun = true;
  if (block_.host() != nullptr) {
    auto& word = *reinterpret_cast<std::uint64_t*>(block_.host() + consumed_[queue]);
    std::atomic_ref<std::uint64_t>(word).store(kConsumedAll, std::memory_order_release);
    return;
  }
  job.to = {block_.device_address() + consumed_[queue], gpu_};
  job.from = {reinterpret_cast<std::uintptr_t>(source_), -1};
  job.bytes = sizeof *source_;
  job.executor = gpu_;
  job.pending = pending_.get();
  job.over = [](ReleaseJob* ended, Status) {
    static_cast<Job*>(ended)->pending->fetch_sub(1, std::memory_order_release);
  };
  pending_->fetch_add(1, std::memory_order_relaxed);
  submit_release(job);
}

void KernelRelease::release_all() {
  for (std::size_t i = 0; i < jobs_.size(); ++i) release(i);
}

bool KernelRelease::wait(std::int64_t limit_ns) const {
  return wait_within(limit_ns, [this] { return pending_->load(std::memory_order_acquire) == 0; });
}

}  // namespace twinpath::gda
