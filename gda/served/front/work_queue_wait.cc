// WAIT: a companion queue holds its next WQE back until another queue has written a certain CQE.
// Nothing but this queue waits; WQEs before the WAIT go on.
//
// CQE numbers in WAIT have 32 bits and wrap; they are compared by signed distance.
#include "gda/served/front/work_queue.h"

namespace twinpath::gda {

bool WorkQueue::take_wait() {
  switch (judge_wait()) {
    case Verdict::blocked:
      known_blocked_ = true;
      return false;
    case Verdict::impossible:
      kill(head_, Syndrome::local_qp_operation, pending_.opcode);
      return true;
    case Verdict::done:
      break;
  }
  taken(head_) = {pending_.opcode, true};
  count(kCountedWait);
  have_pending_ = false;
  ++head_;
  return true;
}

WorkQueue::Verdict WorkQueue::judge_wait() const {
  const WorkQueue* target = find_cq_(pending_.cqn);
  if (target == nullptr || target == this) return Verdict::impossible;
  const auto produced = static_cast<std::uint32_t>(target->produced_);
  if (target->has_produced(pending_.awaited)) {
    // A number from before the queue's first CQE was never one of its WQEs.
    const std::uint32_t age = produced - 1 - pending_.awaited;
    return age < target->produced_ ? Verdict::done : Verdict::impossible;
  }
  // A dead queue flushes what was rung; a counter that hangs would help nobody, and the error is
  // reported by that queue.
  if (target->drained_) return Verdict::done;
  // A kernel posts WAIT after it has got the slot of the WQE it waits for.
  if (pending_.awaited - produced >= target->setup_.depth) return Verdict::impossible;
  if (!known_blocked_ && deadlocks(*target)) return Verdict::impossible;
  return Verdict::blocked;
}

bool WorkQueue::has_produced(std::uint32_t index) const {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(produced_) - 1 - index) >= 0;
}

// Whether `target` waits, perhaps through others, for a CQE of this queue that comes after the
// WAIT at head_.  Asked when this queue gets blocked: the queue that closes a ring finds it.
bool WorkQueue::deadlocks(const WorkQueue& target) const {
  constexpr int kLongestRing = 64;
  const WorkQueue* queue = &target;
  std::uint32_t awaited = pending_.awaited;
  for (int i = 0; i < kLongestRing; ++i) {
    const auto held_back =
        static_cast<std::int32_t>(awaited - static_cast<std::uint32_t>(queue->head_));
    if (held_back < 0) return false;
    if (queue == this) return true;
    if (!queue->have_pending_ || !queue->pending_.wait) return false;
    awaited = queue->pending_.awaited;
    queue = find_cq_(queue->pending_.cqn);
    if (queue == nullptr || queue->has_produced(awaited)) return false;
  }
  return false;
}

}  // namespace twinpath::gda
