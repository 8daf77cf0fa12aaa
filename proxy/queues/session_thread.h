#pragma once
// The one thread of a session, for when nobody calls.  It does two things:
//
//   progress  What isend and irecv accepted may be held behind a write that is under way; the
//             caller's next calls let it go, and if there are none, this thread does, kHoldBoundUs
//             after it was held at the latest.
//   watching  It looks at connections that can fail over (failover.h) when their descriptors have
//             something new, the peer's word or a port's event, and when a time is up.
//
// It sleeps in the kernel while nothing is held and nothing happens, on a futex until somebody is
// watched, then in epoll: a session that holds nothing costs nothing.
//
// For progress it only ever tries the session's lock: who has it makes progress anyway, or is about
// to.  For watching it waits for it.
//
// Threads: any.  start(), watch() and unwatch() without the lock, wake() and call() with it; turns
// and attend() come with it.
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/sync.h"
#include "plugin/base/unshared_fd.h"

namespace twinpath {

inline constexpr int kHoldBoundUs = 200;
// From one look to the next, with what sleeping takes longer than asked.  Each look lets go all
// that is held: what came just before it goes a little early.
inline constexpr int kTurnUs = 180;
// Looks in a row that find nothing, after which it sleeps until it is woken: waking costs more than
// a few looks, and small messages come in bursts.
inline constexpr int kIdleTurns = 5;

// A connection that is watched.
class Watched {
 public:
  // Looks at what may have happened.  When it wants to be called next (now_ns clock); 0: when
  // something happens.
  virtual std::int64_t attend(std::int64_t now) = 0;

 protected:
  ~Watched() = default;
};

class SessionThread {
 public:
  // `turn` says whether anything is held.
  SessionThread(SpinLock& lock, std::function<bool()> turn) : lock_(lock), turn_(std::move(turn)) {}
  ~SessionThread();
  SessionThread(const SessionThread&) = delete;
  SessionThread& operator=(const SessionThread&) = delete;

  // Starts the thread, unless that was done or cannot be.
  void start();
  // Something is held now.
  void wake() {
    if (asleep_) wake_up();
  }
  // Starts it, too.  `who` is called whenever one of its descriptors has something new.
  void watch(Watched& who, const std::vector<int>& fds);
  // The descriptors are still open.  Afterwards it is not called any more.
  void unwatch(Watched& who);
  // Calls it soon, although it said another time.  Between watch and unwatch.
  void call(const Watched& who);
  // Whether it sleeps until it is woken, for tests.  With the lock.
  bool asleep() const { return asleep_; }
  // Turns taken, for tests.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Watched* who = nullptr;
    std::vector<int> fds;
    std::int64_t next = 0;  // wants to be called then (1: now); 0: when something happens
  };
  bool start_thread();
  bool start_epoll();
  void say_missing(const char* what, const std::string& why);
  void wake_up();
  void ring();
  void run();
  // Calls those that are concerned.  When the next one wants to be called; 0: by no clock.
  std::int64_t look(std::span<const epoll_event> fired, std::int64_t now);

  SpinLock& lock_;
  const std::function<bool()> turn_;
  std::mutex changes_;  // taken before the lock
  // Under changes_, like the thread's start.
  bool no_thread_ = false, no_epoll_ = false, said_missing_ = false;
  std::vector<int> watched_;  // each descriptor as often as it was added
  UnsharedFd epoll_, bell_;   // there before watching_ is set
  std::thread thread_;
  std::atomic<std::uint32_t> calls_{0};  // what it sleeps on
  std::atomic<std::uint64_t> turns_{0};
  std::atomic<bool> called_{false};  // somebody wants to be called now
  // Under the lock.
  std::vector<Entry> entries_;
  bool asleep_ = false, stop_ = false, watching_ = false;
};

}  // namespace twinpath
