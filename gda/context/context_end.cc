// See context_end.h.
#include "gda/context/context_end.h"

#include <utility>

#include "gda/memory/retired.h"
#include "gda/memory/signal_release.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

void PacedRelease::turn(const ContextMemory& memory) {
  const std::int64_t now = now_ns();
  if (now < next_) return;
  memory.release_waiters();
  const std::int64_t end = now_ns();
  next_ = end + release_pause(end - now);
}

void LetGo::start(int gpu, ContextMemory& memory, const ContextShape& shape, std::vector<bool> used,
                  counters::GinCounts& counts) {
  pairs_ = shape.pairs();
  counters_ = shape.counters != 0;
  used_ = std::move(used);
  memory_ = &memory;
  counts_ = &counts;
  release_ = std::make_unique<KernelRelease>(gpu, memory.device(), memory.consumed_offsets(),
                                             memory.release_source());
}

bool LetGo::queue_failed(std::size_t pair) {
  counts_->failed_queues.add(1);
  failed_.store(true, std::memory_order_release);
  const bool first = !release_->released(pair);
  release_->release(pair);
  if (counters_) release_->release(pairs_ + pair);
  if (first) counts_->released.add(1);
  return first;
}

void LetGo::give_up() {
  given_up_ = true;
  failed_.store(true, std::memory_order_release);
}

void LetGo::release_all() {
  for (std::size_t p = 0; p < pairs_; ++p)
    if (used_[p % used_.size()] && !release_->released(p)) counts_->released.add(1);
  release_->release_all();
  waiters_.turn(*memory_);
}

void LetGo::turn() {
  if (given_up_) waiters_.turn(*memory_);
}

bool LetGo::wait(std::int64_t limit_ns) {
  release_->release_all();
  memory_->release_waiters();
  return release_->wait(limit_ns);
}

void warn_left_behind(int gpu) {
  TP_WARN(
      "GPU %d does not take copies any more; the memory of a context is left to the "
      "process's end",
      gpu);
}

void retire_memory(int gpu, std::unique_ptr<ContextMemory> memory, std::shared_ptr<void> rest) {
  const std::shared_ptr<ContextMemory> kept = std::move(memory);
  const auto behind = std::make_shared<std::shared_ptr<void>>(std::move(rest));
  const auto free = [kept, behind] {
    kept->free_gpu_memory();
    behind->reset();
  };
  if (!Retired::of_process().put({.free = free, .release = [kept] { kept->release_waiters(); }}))
    TP_WARN(
        "GPU %d: kernels still run after their GIN context was closed; its memory goes when "
        "they end",
        gpu);
}

}  // namespace twinpath::gda
