// See table_release.h.
#include "gda/memory/table_release.h"

#include "gda/memory/signal_release.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {

Result<std::unique_ptr<TableRelease>> TableRelease::make(int gpu, DeviceBlock& tables,
                                                         std::size_t bytes) {
  std::unique_ptr<TableRelease> made(new TableRelease(gpu, tables.device_address(), bytes));
  if (bytes == 0) return made;
  auto stage = DeviceBlock::make(gpu, Place::shared, bytes);
  if (!stage) return stage.status();
  made->stage_ = std::move(stage).take();
  if (auto reach = reach_block(gpu, tables)) made->reach_ = std::move(reach).take();
  return made;
}

void TableRelease::submit(Job& job, bool out) {
  const gpu::CopyEnd here{reinterpret_cast<std::uintptr_t>(stage_->host()), -1};
  const gpu::CopyEnd there{tables_, gpu_};
  job.to = out ? here : there;
  job.from = out ? there : here;
  job.bytes = bytes_;
  job.executor = gpu_;
  job.owner = this;
  // Copies of one order end in the order of their submission.
  job.order = reinterpret_cast<std::uintptr_t>(this);
  job.over = out ? [](ReleaseJob* ended, Status status) {
    TableRelease& owner = *static_cast<Job*>(ended)->owner;
    if (status == Status::ok) return owner.raise();
    owner.busy_.store(false, std::memory_order_release);
  } : [](ReleaseJob* ended, Status) {
    static_cast<Job*>(ended)->owner->busy_.store(false, std::memory_order_release);
  };
  submit_release(job);
}

void TableRelease::raise() {
  release_waiters(reinterpret_cast<std::uint64_t*>(stage_->host()), bytes_ / sizeof(std::uint64_t));
  submit(back_, false);
}

void TableRelease::begin() {
  if (stage_ == nullptr || busy_.exchange(true, std::memory_order_seq_cst)) return;
  // After busy_: who stops either sees the round, or is seen by it.
  if (stopped_.load(std::memory_order_seq_cst)) {
    busy_.store(false, std::memory_order_release);
    return;
  }
  submit(out_, true);
}

bool TableRelease::wait(std::int64_t limit_ns) const {
  return wait_within(limit_ns, [this] { return !busy_.load(std::memory_order_seq_cst); });
}

bool TableRelease::stop(std::int64_t limit_ns) {
  stopped_.store(true, std::memory_order_seq_cst);
  return wait(limit_ns);
}

}  // namespace twinpath::gda
