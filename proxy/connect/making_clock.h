#pragma once
// How long a connection in the making waits for its peer: for as long as the peer's host answers.
// NCCL connects many peers at a time, and a rank may come to its accept() minutes after the others.
//
// Only time in which somebody looked counts (plugin/base/run_clock.h): who was away himself has not
// waited for anybody.  Threads: one at a time.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"

namespace twinpath {

class MakingClock {
 public:
  enum class Verdict : std::uint8_t {
    wait,
    tell,     // that it takes long: after the limit, then after twice as long each time
    give_up,  // the host has not answered for the limit
  };
  // While there is no TCP connection the host owes an answer as long as we look.
  static constexpr std::int64_t kNoConnection = std::numeric_limits<std::int64_t>::max();

  explicit MakingClock(std::int64_t limit_ms)
      : limit_ms_(limit_ms),
        tell_at_ms_(limit_ms),
        clock_(RunClock::until(limit_ms * kMillisecond)) {}

  // `owed_ms`: for how long the peer's host has owed an answer (TcpSocket::owed_ms), or
  // kNoConnection.
  Verdict look(std::int64_t now, std::int64_t owed_ms) {
    const std::int64_t before = waited_ms();
    (void)clock_.look(now);
    silent_ms_ = std::min(owed_ms, silent_ms_ + waited_ms() - before);
    if (silent_ms_ >= limit_ms_) return Verdict::give_up;
    if (waited_ms() < tell_at_ms_) return Verdict::wait;
    tell_at_ms_ = 2 * waited_ms();
    return Verdict::tell;
  }
  std::int64_t waited_ms() const { return clock_.time() / kMillisecond; }

 private:
  const std::int64_t limit_ms_;
  std::int64_t tell_at_ms_;
  std::int64_t silent_ms_ = 0;
  RunClock clock_;
};

// Who has not said its hello may be anybody, and has a limit.
class HelloClock {
 public:
  explicit HelloClock(std::int64_t limit_ns)
      : limit_ns_(limit_ns), clock_(RunClock::until(limit_ns)) {}
  // To be called often while the hello is awaited; `now`: now_ns().
  bool over(std::int64_t now) { return clock_.look(now) >= limit_ns_; }

 private:
  const std::int64_t limit_ns_;
  RunClock clock_;
};

// Of all connections of a session that wait, one line now and then, after ever longer pauses.
// Threads: any.
class WaitLog {
 public:
  // `pause` in ns: after the first line.
  explicit WaitLog(std::int64_t pause) : first_pause_(pause), pause_(pause) {}
  // Whether to say so aloud, and how many were not told since.
  std::optional<unsigned> tell(std::int64_t now) {
    const std::lock_guard hold(mutex_);
    const std::int64_t since = now - told_at_;
    if (told_at_ != 0 && since < pause_) return ++untold_, std::nullopt;
    pause_ = told_at_ == 0 || since > 4 * pause_ ? first_pause_ : 2 * pause_;
    told_at_ = now;
    return std::exchange(untold_, 0);
  }

 private:
  std::mutex mutex_;
  const std::int64_t first_pause_;
  std::int64_t pause_;
  std::int64_t told_at_ = 0;  // 0: never
  unsigned untold_ = 0;
};

}  // namespace twinpath
