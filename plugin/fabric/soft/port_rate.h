#pragma once
// A port that sends at a rate of its own (set_port_rate).
//
// Threads: any.  Times: nanoseconds.
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace twinpath::soft {

class PortRate {
 public:
  // What was posted before leaves as it would have.
  void set(std::uint32_t mbps) {
    free_at_.store(0, std::memory_order_relaxed);
    mbps_.store(mbps, std::memory_order_relaxed);
  }
  // When so many bytes have left that are posted now, behind those before them; 0: at once.
  std::int64_t left_at(std::uint64_t bytes, std::int64_t now) {
    const std::uint32_t mbps = mbps_.load(std::memory_order_relaxed);
    if (mbps == 0) return 0;
    const auto takes = static_cast<std::int64_t>(bytes * 8000 / mbps);  // ns
    std::int64_t free = free_at_.load(std::memory_order_relaxed), next;
    do next = std::max(free, now) + takes;
    while (!free_at_.compare_exchange_weak(free, next, std::memory_order_relaxed));
    return next;
  }

 private:
  std::atomic<std::uint32_t> mbps_{0};
  std::atomic<std::int64_t> free_at_{0};
};

}  // namespace twinpath::soft
