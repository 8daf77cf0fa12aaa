#pragma once
// Order of stores that a device sees, which the language's fences do not promise: between ordinary
// memory and a device's registers, and within memory that the CPU maps write-combining, whose
// stores leave a core merged, late and in any order.
//
// Threads: any; it orders the caller's stores only.
#include <atomic>

namespace twinpath {

// What was stored before has left the core before anything that is stored later.
inline void device_store_fence() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace twinpath
