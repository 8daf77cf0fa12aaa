#pragma once
// The end of a context of either kind: kernels that are let go, again and again where they wait for
// words, and GPU memory that goes when no kernel runs any more.
//
// Threads: see each.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/context/context_memory.h"
#include "gda/memory/kernel_release.h"
#include "plugin/base/counters.h"

namespace twinpath::gda {

// ContextMemory::release_waiters about every millisecond (signal_release.h).  The engine's thread.
class PacedRelease {
 public:
  void turn(const ContextMemory& memory);

 private:
  std::int64_t next_ = 0;
};

// Which kernels of a context have been let go: those of a queue that failed, or all, once nothing
// will come of the context any more.
//
// Threads: failed() from any; start(), wait() and abandon() are the owner's, the rest the engine's.
class LetGo {
 public:
  // Before the engine's first turn.  `used`: by rank, whether it has queues.  `memory` outlives
  // this, and so does `counts`.
  void start(int gpu, ContextMemory& memory, const ContextShape& shape, std::vector<bool> used,
             counters::GinCounts& counts);
  bool started() const { return release_ != nullptr; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool given_up() const { return given_up_; }

  // A queue of that pair has failed.  Error CQEs end waits, but not those of a kernel that needs a
  // slot of a later lap: the consumer index does not pass an error.  So the pair's kernels are let
  // go.  Whether for the first time.
  bool queue_failed(std::size_t pair);
  // Nothing will come of the context any more.
  void give_up();
  // And all its kernels are let go.
  void release_all();
  // Once given up: words that kernels wait for are advanced, about every millisecond.
  void turn();

  // At the end: lets all kernels go, and waits until that is in GPU memory; false after the limit.
  // The engine does not know the context any more.
  bool wait(std::int64_t limit_ns);
  // The GPU takes no copies any more: what it may still read stays.
  void abandon() { (void)release_.release(); }
  void end() { release_.reset(); }

 private:
  std::size_t pairs_ = 0;
  bool counters_ = false;   // each pair has a counter queue, too
  std::vector<bool> used_;  // by rank
  const ContextMemory* memory_ = nullptr;
  counters::GinCounts* counts_ = nullptr;
  std::unique_ptr<KernelRelease> release_;
  PacedRelease waiters_;
  bool given_up_ = false;
  std::atomic<bool> failed_{false};
};

// Logs that a GPU no longer takes copies, so that a context's memory stays.
void warn_left_behind(int gpu);

// Hands GPU memory over to Retired; waiters are let go until it is freed.  `rest` is let go of
// right behind it: what kernels may still use, and what that needs.  The owner's thread.
void retire_memory(int gpu, std::unique_ptr<ContextMemory> memory, std::shared_ptr<void> rest);

}  // namespace twinpath::gda
