#include "plugin/base/event_wait.h"

#include <time.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath {

int EventWait::call(int epoll, std::span<epoll_event> events, int limit_us) const {
  const int most = static_cast<int>(events.size());
  const int limit_ms = limit_us < 0 ? -1 : (limit_us + 999) / 1000;
  const timespec limit{limit_us / 1'000'000, limit_us % 1'000'000 * 1000L};
  switch (call_) {
    case Call::pwait2:
      return ::epoll_pwait2(epoll, events.data(), most, limit_us < 0 ? nullptr : &limit, nullptr);
    case Call::wait:
      return ::epoll_wait(epoll, events.data(), most, limit_ms);
    case Call::pwait:
      return ::epoll_pwait(epoll, events.data(), most, limit_ms, nullptr);
    case Call::none:
      break;
  }
  constexpr timespec kPause{0, 1'000'000};
  (void)::nanosleep(&kPause, nullptr);
  return 0;
}

int EventWait::wait(int epoll, std::span<epoll_event> events, int limit_us) {
  for (;;) {
    const int n = call(epoll, events, limit_us);
    if (n >= 0) return n;
    if (errno == EINTR) return 0;
    if (call_ == Call::pwait)
      TP_WARN(
          "%s: epoll_wait: %s: it serves nobody any more; a security profile (seccomp) of the "
          "container or sandbox has to allow the call",
          who_, std::strerror(errno));
    call_ = static_cast<Call>(static_cast<int>(call_) + 1);
  }
}

}  // namespace twinpath
