#pragma once
// For how long a connection's caller asks in vain, and for what, by one look at the coarse clock
// per such call; calls that achieve something pay nothing.
//
// Time is counted from one call in vain to the next if nothing moved in between, so what a program
// does between two messages is not taken for waiting.  The coarse clock moves 250 to 1000 times a
// second, and each of its ticks falls into a wait as often as the wait is long: over some seconds
// the sums are right, however short the single waits are.
//
// Threads: under the hub's lock.
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/counters.h"

namespace twinpath {

class WaitClock {
 public:
  // `moved`: another number after anything moved.  `cause()`, a counters::Wait, and `requests()`,
  // those under way, are asked once a tick.
  template <class Cause, class Requests>
  void look(counters::Connection& to, std::uint64_t moved, Cause&& cause, Requests&& requests) {
    const std::int64_t now = coarse_now_ns();
    if (moved != moved_) {
      moved_ = moved;
      since_ = last_ = now;
      return;
    }
    if (now == last_) return;
    const auto what = static_cast<std::size_t>(cause());
    to.waited_ns[what].add(static_cast<std::uint64_t>(now - last_));
    to.waits_for.set(static_cast<std::uint32_t>(what));
    to.in_flight.set(static_cast<std::uint32_t>(requests()));
    to.since.set(since_);
    to.looked_at.set(now);
    last_ = now;
  }

 private:
  std::uint64_t moved_ = ~std::uint64_t{0};
  std::int64_t since_ = 0, last_ = 0;
};

}  // namespace twinpath
