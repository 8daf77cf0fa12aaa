#pragma once
// A stop of this process, as a debugger or a machine that is paused makes it: no thread of it runs,
// and the clock on the wall goes on.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace twinpath::test {

// For so long, or a little longer.  Shorter only where the machine is so busy that the time was
// over before the stop began.
inline void stand_still(int ms) {
  const pid_t self = ::getpid();
  const pid_t waker = ::fork();
  REQUIRE(waker >= 0);
  if (waker == 0) {
    timespec t{ms / 1000, ms % 1000 * 1'000'000L};
    // More than once, for a stop that begins late.
    for (; ::getppid() == self; t = {0, 10'000'000}) {
      (void)::nanosleep(&t, nullptr);
      (void)::kill(self, SIGCONT);
    }
    ::_exit(0);
  }
  (void)::raise(SIGSTOP);
  (void)::kill(waker, SIGKILL);
  REQUIRE(::waitpid(waker, nullptr, 0) == waker);
}

}  // namespace twinpath::test
