#pragma once
// Which messages of a sender are timed, for readers of the counters: one in kTimedSmall, of those
// above kSmallBytes one in kTimedLarge, and one at a time.
//
// Pure; the time is told.  Threads: under the hub's lock.
#include <cstddef>
#include <cstdint>

#include "plugin/base/counters.h"

namespace twinpath {

class MessageTimer {
 public:
  // Of the message with that number, counted from 1: whether it is to be timed.  It is told that
  // once.
  bool due(std::uint64_t number, std::size_t bytes) {
    if (number <= last_before_) [[likely]]
      return false;
    last_before_ =
        number + (bytes > counters::kSmallBytes ? counters::kTimedLarge : counters::kTimedSmall);
    return true;
  }
  // Those of up to this number are not.
  std::uint64_t last_before() const { return last_before_; }

  // When the one that is under way was posted; 0: none is.
  bool running() const { return since_ != 0; }
  void start(std::int64_t now) { since_ = now; }
  std::uint64_t took(std::int64_t now) const { return static_cast<std::uint64_t>(now - since_); }
  void stop() { since_ = 0; }

 private:
  std::uint64_t last_before_ = counters::kConnectionCounts ? 0 : ~std::uint64_t{0};
  std::int64_t since_ = 0;
};

}  // namespace twinpath
