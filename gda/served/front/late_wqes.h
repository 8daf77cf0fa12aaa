#pragma once
// WQEs that come later than their doorbell: how long the one at a queue's head is waited for, and
// how many there were.
//
// Threads: the engine's; counts() from any.
#include <atomic>
#include <cstdint>
#include <optional>

#include "plugin/base/wait_within.h"

namespace twinpath::gda {

struct QueueCounts {
  std::uint64_t late = 0;         // WQEs whose bytes came after the doorbell
  std::uint64_t taken_as_is = 0;  // of these, with data that still looked like poison
};

class LateWqes {
 public:
  // Times in which this process ran, see WorkQueueSetup.
  LateWqes(std::int64_t patience_ns, std::int64_t data_patience_ns)
      : patience_(patience_ns), data_patience_(data_patience_ns) {}

  // The WQE at the head was just seen incomplete, at now_ns(): whether it may still come.  The two
  // kinds of incompleteness are not one wait: what misses all of it may miss its data next.
  bool may_come(bool but_for_data, std::int64_t now) {
    if (!waited_) late_.fetch_add(1, std::memory_order_relaxed);
    if (!waited_ || but_for_data_ != but_for_data)
      waited_.emplace(but_for_data ? data_patience_ : patience_);
    but_for_data_ = but_for_data;
    return waited_->left(now) > 0;
  }
  // It is waited for no longer: whole, given up, or (`as_is`) taken with data that looks unwritten.
  void end(bool as_is) {
    if (as_is) taken_as_is_.fetch_add(1, std::memory_order_relaxed);
    waited_.reset();
  }
  QueueCounts counts() const {
    return {late_.load(std::memory_order_relaxed), taken_as_is_.load(std::memory_order_relaxed)};
  }

 private:
  const std::int64_t patience_, data_patience_;
  std::optional<RunLimit> waited_;  // runs while the WQE is seen incomplete...
  bool but_for_data_ = false;       // ...all of it, or but for its data
  std::atomic<std::uint64_t> late_{0}, taken_as_is_{0};
};

}  // namespace twinpath::gda
