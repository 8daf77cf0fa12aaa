#pragma once
// Time in which this process ran, for limits after which something is given up.
//
// A process that was stopped (SIGSTOP, a debugger, a machine that is paused or moved) or got no
// core must not take its own absence for somebody else's: what it waits for may have come long ago.
// So time counts only as far as somebody looked: each look adds what has passed since the last one,
// at most one step.  Whoever looks at the world each time, and gives up after several steps, has
// looked at it once more after any stop.
//
// Threads: one at a time.
#include <algorithm>
#include <cstdint>

#include "plugin/base/clock.h"

namespace twinpath {

class RunClock {
 public:
  // Looks are mostly closer together than `step` ns.
  explicit constexpr RunClock(std::int64_t step) : step_(step) {}
  // For a limit of `limit` ns: four looks at least, however long the pauses between them.
  static constexpr RunClock until(std::int64_t limit) {
    return RunClock(std::clamp<std::int64_t>(limit / 4, 1, kSecond));
  }
  // At now_ns(); the time since the first look, which is 1, in ns.
  std::int64_t look(std::int64_t now) {
    if (looked_ != 0) time_ += std::clamp<std::int64_t>(now - looked_, 0, step_);
    looked_ = now;
    return time_;
  }
  // As of the last look; never 0.
  std::int64_t time() const { return time_; }

 private:
  std::int64_t step_;
  std::int64_t looked_ = 0;
  std::int64_t time_ = 1;
};

}  // namespace twinpath
