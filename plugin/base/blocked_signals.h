#pragma once
// While one of these lives, the calling thread takes no signal, and threads that it starts never
// do: the application's signals are not for threads of ours.
//
// Threads: destroyed by the thread that made it.
#include <pthread.h>

#include <csignal>

namespace twinpath {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace twinpath
