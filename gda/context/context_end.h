#pragma once
// The end of a context of either kind: waiters let go again and again, and GPU memory that goes
// when no kernel runs any more.
//
// Threads: see each.
#include <cstdint>
#include <memory>

#include "gda/context/context_memory.h"

namespace twinpath::gda {

// ContextMemory::release_waiters about every millisecond (signal_release.h).  The engine's thread.
class PacedRelease {
 public:
  void turn(const ContextMemory& memory);

 private:
  std::int64_t next_ = 0;
};

// Logs that a GPU no longer takes copies, so that a context's memory stays.
void warn_left_behind(int gpu);

// Hands GPU memory over to Retired; waiters are let go until it is freed.  `rest` is let go of
// right behind it: what kernels may still use, and what that needs.  The owner's thread.
void retire_memory(int gpu, std::unique_ptr<ContextMemory> memory, std::shared_ptr<void> rest);

}  // namespace twinpath::gda
