#pragma once
// Monotonic time in nanoseconds, for deadlines and reports.
#include <chrono>
#include <cstdint>

namespace twinpath {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline constexpr std::int64_t kMillisecond = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace twinpath
