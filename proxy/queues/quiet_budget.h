#pragma once
// How long the comms of a session that close may wait for peers that do nothing: all of them
// together, since each of them polls for all.  What the network had for one of them has been taken
// when another one has waited; only the first few to close need a time of their own.
//
// Threads: under the hub's lock.
#include <algorithm>
#include <cstdint>

#include "plugin/base/run_clock.h"

namespace twinpath {

class QuietBudget {
 public:
  static constexpr std::int64_t kEach = 20'000'000;  // ns, of one comm
  static constexpr std::int64_t kAll = 100'000'000;  // of those that close within kWindow
  static constexpr std::int64_t kLeast = 200'000;    // of one, even then: for its last cells
  static constexpr std::int64_t kWindow = 1'000'000'000;

  // For a comm that begins to close.  `now`: now_ns().
  std::int64_t allowed(std::int64_t now) {
    if (now - begun_ >= kWindow) {
      begun_ = now;
      spent_ = 0;
    }
    return std::clamp(kAll - spent_, kLeast, kEach);
  }
  // Nothing came in that time.
  void spend(std::int64_t ns) { spent_ += ns; }

 private:
  std::int64_t begun_ = -kWindow, spent_ = 0;
};

// How long a closing comm stays, of the time in which its process ran.
class DrainClock {
 public:
  // At now_ns(), after a look at its queues: whether something `moved`.
  bool go_on(std::int64_t now, bool moved, QuietBudget& quiet) {
    if (quiet_ == 0) {
      quiet_ = quiet.allowed(now);
      ran_ = RunClock(quiet_ / 2);  // what came during a stop is looked at once more
    }
    const std::int64_t ran = ran_.look(now);
    if (moved) moved_ = ran;
    if (ran >= kMost) return false;
    if (ran - moved_ < quiet_) return true;
    quiet.spend(ran - moved_);
    return false;
  }
  // Whether to look at the peer's socket: about each millisecond.
  bool look(std::int64_t now) {
    if (now - looked_ < 1'000'000) return false;
    looked_ = now;
    return true;
  }

 private:
  static constexpr std::int64_t kMost = 100'000'000;  // ns
  RunClock ran_{1};
  std::int64_t moved_ = 0, looked_ = 0, quiet_ = 0;
};

}  // namespace twinpath
