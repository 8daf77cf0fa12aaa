#pragma once
// The thread that makes progress when nobody calls.  What isend and irecv accepted may be held
// behind a write that is under way; the caller's next calls let it go, and if there are none, this
// thread does, kHoldBoundUs after it was held at the latest.  It sleeps for good
// while nothing is held: a session that holds nothing costs nothing.
//
// It only ever tries the session's lock: who has it makes progress anyway, or is about to.
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "plugin/base/sync.h"

namespace twinpath {

inline constexpr int kHoldBoundUs = 200;
// From one look to the next, with what sleeping takes longer than asked.  Each look lets go all
// that is held: what came just before it goes a little early.
inline constexpr int kTurnUs = 180;
// Looks in a row that find nothing, after which it sleeps until it is woken: waking costs more than
// a few looks, and small messages come in bursts.
inline constexpr int kIdleTurns = 5;

class ProgressThread {
 public:
  // `turn` is called with `lock` held and says whether anything is held.  The thread starts with
  // the first wake().
  ProgressThread(SpinLock& lock, std::function<bool()> turn)
      : lock_(lock), turn_(std::move(turn)) {}
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Starts the thread, unless that was done or cannot be.  Without the lock.
  void start();
  // With the lock: something is held now.
  void wake() {
    if (asleep_) wake_up();
  }
  // Turns taken, for tests.  Any thread.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  void run();
  void wake_up();

  SpinLock& lock_;
  const std::function<bool()> turn_;
  std::thread thread_;
  std::atomic<std::uint32_t> calls_{0};  // what it sleeps on
  bool asleep_ = false;                  // under the lock
  bool stop_ = false;                    // under the lock
  std::atomic<std::uint64_t> turns_{0};
};

}  // namespace twinpath
