#include "proxy/queues/progress.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <chrono>
#include <mutex>
#include <system_error>

#include "plugin/base/blocked_signals.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath {

void ProgressThread::start() {
  if (thread_.joinable()) return;
  {
    std::lock_guard hold(lock_);
    if (stop_) return;
  }
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    std::lock_guard hold(lock_);
    stop_ = true;  // for good: the log has it once
    TP_WARN(
        "what is held back waits for the next call of the communicator: no thread can be "
        "started: %s",
        why_no_thread(error.code().value()).c_str());
  }
}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard hold(lock_);
    stop_ = true;
    wake_up();
  }
  thread_.join();
}

void ProgressThread::wake_up() {
  asleep_ = false;
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_one();
}

void ProgressThread::run() {
  (void)::pthread_setname_np(::pthread_self(), "twinpath-go-on");
  (void)::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us is most of the bound
  for (int idle = 0;;) {
    // Read before asleep_ is set: a wake_up after that changes it, and wait() returns.
    const std::uint32_t calls = calls_.load(std::memory_order_acquire);
    bool sleep = false;
    if (lock_.try_lock()) {
      std::lock_guard hold(lock_, std::adopt_lock);
      if (stop_) return;
      idle = turn_() ? 0 : idle + 1;
      sleep = asleep_ = idle >= kIdleTurns;
      turns_.fetch_add(1, std::memory_order_relaxed);
    }
    if (sleep) {
      calls_.wait(calls, std::memory_order_acquire);
      idle = 0;
    }
    // What woke it has just been held.
    std::this_thread::sleep_for(std::chrono::microseconds(kTurnUs));
  }
}

}  // namespace twinpath
