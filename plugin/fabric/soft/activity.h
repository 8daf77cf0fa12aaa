#pragma once
// Which queue pairs polls and sweeps look at: those that have something to do, or may have soon.
// activity.cc says how the others sleep without missing anything.
//
// Threads: whoever holds Hca::lock_; may_sleep() any.
#include <cstdint>
#include <vector>

#include "plugin/fabric/soft/board.h"

namespace twinpath::soft {

struct SoftQp;

class Activity {
 public:
  // Before there are queue pairs.  membarrier works; where it does not, none sleeps.
  void let_sleep() { may_sleep_ = true; }
  bool may_sleep() const { return may_sleep_; }
  const std::vector<SoftQp*>& awake() const { return awake_; }

  // Gets up those that are marked; `qps`: by the lower part of their numbers.  False: some could
  // not be, and are marked again.
  bool get_up_marked(Board& board, const std::vector<SoftQp*>& qps, std::int64_t now);
  // Once a millisecond: which CQs nobody has polled since the last time.
  void note_idle(std::int64_t now);
  // After a look at one that is awake: whether it goes to sleep with the next who do.
  void look(SoftQp& qp, std::int64_t now) {
    if (is_drowsy(qp, now)) drowsy_.push_back(&qp);
  }
  void put_to_sleep(std::int64_t now);
  // It is destroyed.
  void forget(SoftQp* qp) { std::erase(awake_, qp); }

 private:
  bool get_up(SoftQp& qp, std::int64_t now);
  bool is_drowsy(SoftQp& qp, std::int64_t now) const;
  static bool fall_asleep(SoftQp& qp);

  bool may_sleep_ = false;
  // Those that sweeps look at, and those of these that are about to sleep.
  std::vector<SoftQp*> awake_, drowsy_;
  std::int64_t idle_noted_ = 0, slept_at_ = 0;
  std::uint64_t idle_round_ = 0;
};

}  // namespace twinpath::soft
