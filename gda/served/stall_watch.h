#pragma once
// Whether a queue's port loses everything without a word.  An adapter tells of that once its
// retries are over, by default after half a minute; until then kernels wait.  So a queue that has
// work under way, and of which nothing ends for TWINPATH_STALL_MS, has its second port asked; if
// that answers, and for a quarter as long still nothing ends, the queue had better go there.  What
// is under way takes its time: a 64th of the port's speed is still alive.
//
// A peer that is only slow, or stopped, answers over neither port.  Where its adapter answers for
// it, but what is under way may wait for its host (receives that it has not given back), it must be
// seen to go on, too: by a number that it counts, read with each answer.
//
// Threads: one at a time.  Pure: times are the caller's, ns.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "plugin/base/clock.h"

namespace twinpath::gda {

class StallWatch {
 public:
  enum class Verdict : std::uint8_t { fine, ask, mute };

  // `stall_ms`: 0 never.
  StallWatch(int stall_ms, std::uint32_t speed_mbps)
      : stall_(stall_ms * kMillisecond), speed_(std::max(speed_mbps, 1000u)) {}

  // `bytes`: under way, of the operations [finished, issued).
  Verdict look(std::int64_t now, std::uint64_t issued, std::uint64_t finished,
               std::uint64_t bytes) {
    if (issued == finished || finished != finished_) {
      finished_ = finished;
      since_ = now;
      answered_ = 0;
      beat_.reset();
      return Verdict::fine;
    }
    const std::int64_t limit = stall_ + static_cast<std::int64_t>(bytes * 512 / speed_) * 1000;
    if (stall_ == 0 || now - since_ < limit) return Verdict::fine;
    if (answered_ == 0) return Verdict::ask;
    return now - answered_ < limit / 4 ? Verdict::fine : Verdict::mute;
  }
  // The second port has been asked, and answers.  `beat`: what the peer counts as it goes on; none:
  // nothing waits for its host.
  void answered(std::int64_t now, std::optional<std::uint64_t> beat = {}) {
    if (!beat || (beat_ && *beat_ != *beat))
      answered_ = now;
    else
      beat_ = beat;
  }
  // For how long nothing has ended.
  std::int64_t quiet(std::int64_t now) const { return now - since_; }

 private:
  const std::int64_t stall_;
  const std::uint32_t speed_;
  std::uint64_t finished_ = 0;
  std::int64_t since_ = 0, answered_ = 0;
  std::optional<std::uint64_t> beat_;  // of the first answer to this silence
};

}  // namespace twinpath::gda
