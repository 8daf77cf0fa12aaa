#pragma once
// What the ends of a connection ask each other's processes on the control connection: whether it
// runs, and with that to look at its own queues for a while.
//
// Pure; the time is told.  `ran`: time in which this process ran.  Threads: under the hub's lock.
#include <algorithm>
#include <cstdint>

#include "plugin/base/clock.h"

namespace twinpath {

class PeerQuestions {
 public:
  // Nothing of ours is under way, and callers wait: for a cell, then, that the peer has not posted
  // yet or that is lost.  Perhaps nobody calls there: a receive without completion is done once its
  // cell is posted.  Whether to ask it now: when the wait has lasted for `first`, and after twice
  // as long each time, since mostly it has nothing to offer yet.  `progress`: another number after
  // something was achieved, which ends a wait.
  bool wake_due(std::int64_t now, std::uint64_t progress, std::int64_t first) {
    const bool anew = wake_at_ == 0 || progress != wake_progress_;
    if (!anew && now < wake_at_) return false;
    wake_progress_ = progress;
    wake_pause_ = anew ? first : std::min(2 * wake_pause_, std::max(kLongestWake, first));
    wake_at_ = now + wake_pause_;
    return !anew;
  }
  void asked(std::int64_t ran) { asked_ = ran; }
  void answered(std::int64_t ran) { answered_ = ran; }
  bool asked_since(std::int64_t ran) const { return asked_ >= ran; }
  // Whether it has answered the last question, and `time` ago.
  bool answered_for(std::int64_t time, std::int64_t ran) const {
    return answered_ >= asked_ && ran - answered_ >= time;
  }

  // The peer has asked: this end looks at its queues until then, although nobody may call.
  void look_until(std::int64_t until) { looks_until_ = until; }
  bool looks(std::int64_t now) const { return now < looks_until_; }

 private:
  static constexpr std::int64_t kLongestWake = 2 * kSecond;
  std::int64_t asked_ = 0, answered_ = 0;  // in time that ran
  std::int64_t wake_at_ = 0, wake_pause_ = 0;
  std::uint64_t wake_progress_ = 0;
  std::int64_t looks_until_ = 0;
};

}  // namespace twinpath
