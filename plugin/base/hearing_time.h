#pragma once
// How long callers have had to say who they are, for who makes room when others wait: of the time
// in which this process ran (run_clock.h).  After a stop all of them are old by the clock on the
// wall, and none has been heard since; those that stood still with us, on a host that was paused,
// had no time either.
//
// Threads: one at a time.
#include <cstdint>

#include "plugin/base/run_clock.h"

namespace twinpath {

class HearingTime {
 public:
  // ns that each is given, however many wait: a hello comes with the next call of its process.
  static constexpr std::int64_t kEach = 100'000'000;
  // Looks should be no farther apart while somebody is to make room.
  static constexpr std::int64_t kLookAgain = kEach / 8;

  // At now_ns(), each time that all who are here have been heard.
  void look(std::int64_t now) { (void)ran_.look(now); }
  // Kept for one who is let in now.
  std::int64_t begin() const { return ran_.time(); }
  bool over(std::int64_t begin) const { return ran_.time() - begin >= kEach; }

 private:
  RunClock ran_{kLookAgain};
};

}  // namespace twinpath
