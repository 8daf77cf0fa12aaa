#pragma once
// Waiting for what ends by itself, with a limit after which it never will: of the time in which
// this process ran (run_clock.h), and not before another look.
//
// Threads: any.
#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"

namespace twinpath {

// A limit in ns.  A longer way between two looks at it counts for a part of it only, so that who
// looks at the world before each has looked several times before it is over.
class RunLimit {
 public:
  explicit constexpr RunLimit(std::int64_t limit)
      : limit_(limit), ran_(std::max<std::int64_t>(limit / 8, 1)) {}
  // At now_ns(): what is left, for a wait that looks again after look_again() at the latest.
  std::int64_t left(std::int64_t now) { return limit_ - (ran_.look(now) - 1); }
  bool over(std::int64_t now) { return left(now) < 0; }
  std::int64_t look_again() const { return std::max<std::int64_t>(limit_ / 16, 1); }

 private:
  std::int64_t limit_;
  RunClock ran_;
};

// Whether `done` became true.
template <class Done, class Pause = int (*)(), class Now = std::int64_t (*)()>
bool wait_within(std::int64_t limit, Done done, Pause pause = sched_yield, Now now = now_ns) {
  for (RunLimit waited(limit); !done();) {
    if (waited.over(now())) return false;
    (void)pause();
  }
  return true;
}

}  // namespace twinpath
