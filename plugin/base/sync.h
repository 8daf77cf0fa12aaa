#pragma once
// Small synchronisation pieces shared by proxy and soft HCA.
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <thread>

namespace twinpath {

inline constexpr std::size_t kCacheLine = 64;

// Steps of the data path that stand apart for the reader only, and its lambdas: without it they are
// calls that get their captures through memory.
#define TP_ALWAYS_INLINE __attribute__((always_inline))
// Ways off the short one.  Were they inlined, the short way would save and restore the registers
// that only they need.
#define TP_APART __attribute__((noinline))

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// A lock that is nearly always free: one exchange to take it, one store to leave it.  After
// 1000 failed tries the waiter yields, so an owner that lost its core is let back on.
// Satisfies Lockable.
class SpinLock {
 public:
  void lock() {
    if (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  // Takes it if it is free.  For those that expect it to be: it takes the cache line anyway.
  bool take() { return !locked_.exchange(true, std::memory_order_acquire); }
  bool try_lock() { return !locked_.load(std::memory_order_relaxed) && take(); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  // Apart, so that lock() stays small where it is inlined.
  [[gnu::cold, gnu::noinline]] void wait() {
    unsigned spins = 0;
    do {
      while (locked_.load(std::memory_order_relaxed)) {
        if (++spins < 1000) {
          cpu_relax();
        } else {
          sched_yield();
        }
      }
    } while (locked_.exchange(true, std::memory_order_acquire));
  }
  std::atomic<bool> locked_{false};
};

}  // namespace twinpath
