#pragma once
// Events for a user who waits on a file descriptor: an eventfd that counts them (and that the
// user may make non-blocking, or poll), and a list that holds them, so that the events of an
// object that is destroyed can be taken back before anybody reads them.
//
// Threads: any.  `push` never blocks.  What `taken` and `gone` do happens under the queue's lock:
// an event is either still here or has been counted as reported.
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <mutex>

#include "plugin/base/owned.h"

namespace twinpath::soft {

template <class T>
class EventQueue {
 public:
  // False with errno.
  bool open() {
    fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    return static_cast<bool>(fd_);
  }
  int fd() const { return fd_.get(); }

  void push(const T& event) {
    std::lock_guard hold(lock_);
    events_.push_back(event);
    // Cannot fail: the counter would have to reach 2^64.
    const std::uint64_t one = 1;
    (void)!write(fd_.get(), &one, sizeof one);
  }

  // The next event; blocks as read(2) on the descriptor does.  -1 with errno.
  template <class Taken>
  int pop(T& out, Taken taken) {
    for (;;) {
      std::uint64_t one = 0;
      if (read(fd_.get(), &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
      std::lock_guard hold(lock_);
      if (events_.empty()) continue;  // it was taken back meanwhile
      out = events_.front();
      events_.pop_front();
      taken(out);
      return 0;
    }
  }

  // Takes back what `gone` names, so that nobody is told of it any more; gives what `after` gives,
  // asked under the same lock.
  template <class Gone, class After>
  auto withdraw(Gone gone, After after) {
    std::lock_guard hold(lock_);
    for (auto n = std::erase_if(events_, gone); n != 0; --n) {
      std::uint64_t one = 0;
      iovec v{&one, sizeof one};
      // Without waiting: a reader may just have counted this one down, and will find nothing.
      (void)!preadv2(fd_.get(), &v, 1, -1, RWF_NOWAIT);
    }
    return after();
  }

 private:
  UniqueFd fd_;
  std::mutex lock_;
  std::deque<T> events_;
};

}  // namespace twinpath::soft
