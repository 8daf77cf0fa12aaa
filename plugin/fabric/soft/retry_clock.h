#pragma once
// How long a queue pair has waited for its peer in vain.
//
// Threads: whoever holds the queue pair's lock.  Times: nanoseconds of a RunClock.
#include <cstdint>

namespace twinpath::soft {

struct RetryClock {
  std::uint64_t seen_progress = 0;
  bool seen_rnr = false;
  std::int64_t waiting_since = 0;  // 0: not waiting

  // Starts with the next look.
  void stop() { waiting_since = 0; }
  // `progress`: grows with whatever the peer does; `rnr`: it says that it has no receive.  Either
  // that changes starts the clock anew, and so does `busy`: others are at work.
  std::int64_t waited(std::uint64_t progress, bool rnr, bool busy, std::int64_t now) {
    if (busy || progress != seen_progress || rnr != seen_rnr || waiting_since == 0)
      *this = {progress, rnr, now};
    return now - waiting_since;
  }
};

}  // namespace twinpath::soft
