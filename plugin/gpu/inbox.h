#pragma once
// Jobs on their way from any thread to the one that serves them.
//
// Threads: push, wake, empty: any.  take, sleep: the serving thread.
#include <atomic>

#include "plugin/base/sync.h"
#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

class JobInbox {
 public:
  void push(CopyJob* job) {
    CopyJob* head = newest_.load(std::memory_order_relaxed);
    do {
      job->next = head;
    } while (!newest_.compare_exchange_weak(head, job));
    // Both this pair and sleep()'s are sequentially consistent: either the thread sees the job
    // before it sleeps or we see that it sleeps.
    if (asleep_.load()) wake();
  }
  void wake() {
    asleep_.store(false);
    asleep_.notify_one();
  }
  bool empty() const { return newest_.load() == nullptr; }

  // All that has come, chained through CopyJob::next, oldest first; null: nothing.
  CopyJob* take() {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    CopyJob* newest = newest_.exchange(nullptr, std::memory_order_acquire);
    CopyJob* oldest = nullptr;
    while (newest != nullptr) {
      CopyJob* next = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = next;
    }
    return oldest;
  }

  // Until a job comes or wake(); not at all when `ending()`, which is asked after who wakes could
  // see that we sleep.
  template <class Ending>
  void sleep(Ending&& ending) {
    asleep_.store(true);
    if (empty() && !ending()) asleep_.wait(true);
    asleep_.store(false, std::memory_order_relaxed);
  }

 private:
  alignas(kCacheLine) std::atomic<CopyJob*> newest_{nullptr};
  alignas(kCacheLine) std::atomic<bool> asleep_{false};
};

}  // namespace twinpath::gpu
