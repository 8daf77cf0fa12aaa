#pragma once
// Faults on demand (TWINPATH_SOFT_FAULTS), for tests and the demo:
//   fail_send=N      the N-th send WQE of this process ends in a retry-exceeded error
//   delay_us=T       every send WQE waits T microseconds before it starts
// Comma separated.  Nothing is random: the same run fails at the same place.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace twinpath::soft {

class Faults {
 public:
  // False and `why` for text that is not a fault list; then no fault is set.
  bool set(std::string_view text, std::string& why);
  bool any() const { return any_; }
  // Counts one send WQE; true when this one must fail.
  bool next_send_fails() {
    return fail_send_ != 0 && counter_.fetch_add(1, std::memory_order_relaxed) + 1 == fail_send_;
  }
  std::int64_t delay_us() const { return delay_us_; }

 private:
  bool any_ = false;
  std::uint64_t fail_send_ = 0;
  std::int64_t delay_us_ = 0;
  std::atomic<std::uint64_t> counter_{0};
};

}  // namespace twinpath::soft
