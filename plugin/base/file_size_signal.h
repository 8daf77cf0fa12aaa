#pragma once
// While one of these lives, a file, or a memfd, that the calling thread would make longer than the
// limit of file sizes (ulimit -f) is an error, EFBIG, and nothing else.  Without it the kernel also
// sends SIGXFSZ to the thread, which kills a program that does not expect it.
//
// The signal goes to the thread that made the call, so blocking it here and taking it back changes
// nothing for the program.  One that was pending before is the program's, and stays.
//
// Threads: destroyed by the thread that made it.
#include <pthread.h>
#include <time.h>

#include <csignal>

namespace twinpath {

class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&own_);
    sigaddset(&own_, SIGXFSZ);
    sigset_t pending;
    sigemptyset(&pending);
    (void)::sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    (void)::pthread_sigmask(SIG_BLOCK, &own_, &before_);
  }
  ~NoFileSizeSignal() {
    constexpr timespec kNow{0, 0};
    // Fails when there is none.
    if (!was_pending_) (void)::sigtimedwait(&own_, nullptr, &kNow);
    (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t own_, before_;
  bool was_pending_;
};

}  // namespace twinpath
