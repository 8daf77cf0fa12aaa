#pragma once
// A descriptor that a forked child does not keep.  A socket lives as long as any process has it
// open: a child that only sleeps would keep its parent's connections up, and peers would wait for
// a parent that was killed long ago.  Close-on-exec helps only where the child calls exec.
//
// All of them are in one list of the process (as the log's sink, a fork has no argument to carry
// it).  A fork waits until no descriptor is half made, and the child closes what is listed before
// fork() returns there.  Whoever destroys an owner in the child then closes nothing: the number
// may be another file's by that time.
//
// Threads: an object belongs to one thread at a time; the list has a lock, under which no call
// waits.  Children made by vfork, posix_spawn or clone are not told; those call exec.
#include <mutex>
#include <utility>

namespace twinpath {

class UnsharedFd {
 public:
  UnsharedFd() = default;
  // `open` gives a new descriptor, or -1 and errno, and does not wait; no fork comes in between.
  template <class Open>
  static UnsharedFd make(Open&& open) {
    const std::lock_guard hold(list_lock());
    return UnsharedFd(list(open()));
  }
  UnsharedFd(UnsharedFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  UnsharedFd& operator=(UnsharedFd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  UnsharedFd(const UnsharedFd&) = delete;
  UnsharedFd& operator=(const UnsharedFd&) = delete;
  ~UnsharedFd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  explicit UnsharedFd(int fd) : fd_(fd) {}
  static std::mutex& list_lock();
  // With the lock: `fd`, or -1 and errno where the list cannot grow; it is closed then.
  static int list(int fd);

  int fd_ = -1;
};

}  // namespace twinpath
