#pragma once
// Waits for events of an epoll descriptor, in microseconds, with whatever call the system lets
// have: epoll_pwait2 came with Linux 5.11, and sandboxes refuse what they do not know with any
// errno.
//
// Threads: one at a time.
#include <sys/epoll.h>

#include <span>

namespace twinpath {

class EventWait {
 public:
  // `who` is waiting, for the log line when no call is to be had: this then sleeps a millisecond
  // each time, so that a loop around it stays a slow one.
  explicit EventWait(const char* who) : who_(who) {}
  // Negative: without limit.  Milliseconds, rounded up, where there is nothing finer.  How many
  // events there are; 0 also for an interruption.
  int wait(int epoll, std::span<epoll_event> events, int limit_us);

 private:
  enum class Call { pwait2, wait, pwait, none };
  int call(int epoll, std::span<epoll_event> events, int limit_us) const;

  const char* const who_;
  Call call_ = Call::pwait2;  // the first that was not refused
};

}  // namespace twinpath
