#pragma once
// When a link is to look at its peer and its devices, by the calls that had to answer "not yet":
// the clock is read for one of several such calls, and the others pay an increment.
//
// Threads: one at a time.
#include <cstdint>

namespace twinpath {

class WatchClock {
 public:
  static constexpr unsigned kCallsPerClock = 16;
  // `period`: ns from one look to the next.
  explicit constexpr WatchClock(std::int64_t period) : period_(period) {}
  // Of a call in vain: whether it is the one that reads the clock.
  bool call() { return ++calls_ % kCallsPerClock == 0; }
  // Then, with now_ns(): whether a look is due.  The first only begins the first period.
  bool due(std::int64_t now) {
    if (now < next_) return false;
    const bool first = next_ == 0;
    next_ = now + period_;
    return !first;
  }

 private:
  const std::int64_t period_;
  unsigned calls_ = 0;
  std::int64_t next_ = 0;
};

}  // namespace twinpath
