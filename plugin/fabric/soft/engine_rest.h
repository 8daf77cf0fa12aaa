#pragma once
// How long the engine thread rests between two looks at the queue pairs.
//
// Threads: the engine.
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/config.h"
#include "plugin/base/cpus.h"

namespace twinpath::soft {

class EngineRest {
 public:
  explicit EngineRest(EngineChoice choice) : choice_(choice) {}
  // The processors that the thread may use.
  void set_cpus(int cpus) { cpus_ = cpus; }

  // Whether the look at `now` (ns) is followed by another at once, whatever it finds.  Then nobody
  // needs to ring: each ring is a system call of the far end.  Work found by us means that its
  // owner does not poll, and that the far end may wait for it before it sends more.  Waking us
  // takes longer than such a round trip, so we look on: where processors are few, for little longer
  // than that, and not on the only one.  Yielding between two looks would cost a time slice each
  // beside anything that polls.
  bool looks_on(std::int64_t now) const {
    if (choice_ != EngineChoice::automatic) return choice_ == EngineChoice::spin;
    if (cpus_ == 1) return false;
    const std::int64_t quiet = now - last_moved_;
    return quiet < kLookOnFew || pause_after(quiet, cpus_, kLookOn) == Pause::spin;
  }

  // Microseconds until the next look, unless somebody wakes us.  `moved`: the look at `now` found
  // something to do; `all_sleep`: no queue pair is to be looked at.
  int wait_us(std::int64_t now, bool moved, bool all_sleep) {
    if (moved) last_moved_ = now;
    if (looks_on(now)) return 0;
    // Whoever gives a sleeping QP something to do wakes us; the limit is for one that dies before.
    if (all_sleep) return 100'000;
    const bool soon = choice_ == EngineChoice::automatic && now - last_moved_ < 5 * kMillisecond;
    return soon ? 50 : 1000;
  }

 private:
  static constexpr std::int64_t kLookOn = 20'000, kLookOnFew = 10'000;

  const EngineChoice choice_;
  int cpus_ = 1;
  std::int64_t last_moved_ = -kSecond;
};

}  // namespace twinpath::soft
