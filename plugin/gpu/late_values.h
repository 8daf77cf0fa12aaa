#pragma once
// Whether a stream's values may go without a copy before them (lane.h), by how long they took.
//
// That a stream stays on the copy engine was measured with one driver (580.159).  Where it does
// not, values are late; but they may be so because a thread did not run.  So it takes some, less
// those in time, and after a while one is tried again.
//
// Times: ns of one clock.  Threads: one.
#include <algorithm>
#include <cstdint>

namespace twinpath::gpu {

class LateValues {
 public:
  static constexpr unsigned kOften = 3;
  struct Limits {
    std::int64_t late = 500'000;         // a quarter of a slice of a GPU's time
    std::int64_t again = 1'000'000'000;  // from the last late one to the next try
  };
  explicit LateValues(const Limits& limits) : limits_(limits) {}

  bool in_doubt() const { return late_ >= kOften; }
  // False: they need a copy.
  bool trusted(std::int64_t now) const { return !in_doubt() || now >= try_at_; }
  // Some went without a copy, at `since`, and are there now.  True when trust has just gone, the
  // first time only.
  bool took(std::int64_t since, std::int64_t now) {
    if (now - since <= limits_.late) {
      if (late_ > 0) --late_;
      return false;
    }
    late_ = std::min(late_ + 1, kOften);
    if (!in_doubt()) return false;
    try_at_ = now + limits_.again;
    const bool first = !gone_;
    gone_ = true;
    return first;
  }

 private:
  const Limits limits_;
  unsigned late_ = 0;
  std::int64_t try_at_ = 0;
  bool gone_ = false;
};

}  // namespace twinpath::gpu
