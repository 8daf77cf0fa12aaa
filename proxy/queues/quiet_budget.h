#pragma once
// How long the comms of a session that close may wait for peers that do nothing: all of them
// together, since each of them polls for all.  What the network had for one of them has been taken
// when another one has waited; only the first few to close need a time of their own.
//
// Threads: under the hub's lock.
#include <algorithm>
#include <cstdint>

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

}  // namespace twinpath
