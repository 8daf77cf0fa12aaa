// See context_end.h.
#include "gda/context/context_end.h"

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
