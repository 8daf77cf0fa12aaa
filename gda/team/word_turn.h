#pragma once
// Whose turn it is to add to words in GPU memory by an adapter's READ and WRITE: one at a time, for
// between the two nobody else may.
//
// Threads: any.
#include <atomic>

namespace twinpath::gda {

class WordTurn {
 public:
  // False: somebody else has it.
  bool take(const void* who) {
    const void* nobody = nullptr;
    // Partner: give_back(), whose caller's adapter has written words that this one reads.
    return holder_.compare_exchange_strong(nobody, who, std::memory_order_acquire,
                                           std::memory_order_relaxed);
  }
  // Of who has it; else nothing.
  void give_back(const void* who) {
    (void)holder_.compare_exchange_strong(who, nullptr, std::memory_order_release,
                                          std::memory_order_relaxed);
  }

 private:
  std::atomic<const void*> holder_{nullptr};
};

}  // namespace twinpath::gda
