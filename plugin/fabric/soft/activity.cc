// Queue pairs that have nothing to do sleep: neither polls nor the engine's sweeps look at them, so
// thousands of connections that nobody uses cost nothing.
//
// Asleep means: not in the lists that polls and sweeps walk (SoftCq::awake, Activity::awake).  A QP
// sleeps when it has had nothing to do for kDrowsyAfter and what could give it work is sure to be
// seen:
//   - this process does something to it: posts, changes its state, joins it to its link, brings
//     its port up.  All of these call rouse(): a mark on our own notice board (board.h).
//   - the far end puts a packet into the ring.  It finds kBellMark in our end's bell and marks the
//     same board.  An idle QP waits for nothing else from there: acknowledgements and refusals
//     concern a QP with work outstanding, which stays awake, and so do its retry clocks.
// The first mark after the board was last looked at wakes the engine, too.  Everybody looks at the
// board first, so what is marked is moved along by the very next poll.
//
// No wake-up is lost.  The far end publishes its packet (P), then looks at the bell (B), with only
// the compiler kept from exchanging the two: the processor may still see an old B while P is not
// yet visible.  We store the bell (b), and must not sleep over a P that saw no b.  So between b
// and the last look at the ring (r) we issue membarrier(2), expedited: when it returns, each thread
// of each registered process has executed a full fence at some moment since it began.  If that
// thread's B comes after its fence, B sees b, and it marks.  If B comes before it, so does P, in
// program order, and r sees P: we stay awake.  A process that could not register never sets
// LinkEnd::can_mark and its peers' QPs never sleep; that costs time, not messages.
//
// Inside this process the QP's lock does the same: a poster holds it and finds `asleep` set, or
// fall_asleep() takes it later and finds the work.
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

constexpr std::int64_t kDrowsyAfter = 10 * kMillisecond;
// Many fall asleep for one fence, which interrupts the cores that run threads of such processes.
constexpr std::int64_t kFencesApart = 5 * kMillisecond;

bool fence_all_threads() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

// Grows with everything that it does.
std::uint64_t work_so_far(const SoftQp& qp) {
  std::uint64_t n = qp.send.tail + qp.receive.tail;
  if (qp.link.mine != nullptr)
    n += qp.link.mine->produced.load(std::memory_order_relaxed) +
         qp.link.mine->consumed.load(std::memory_order_relaxed);
  return n;
}

// Whether the far end, if there is one, will mark us.
bool will_be_marked(const SoftQp& qp) {
  const LinkEnd* far = qp.link.far();
  if (far == nullptr) return true;  // bind_link() and on_acceptance() rouse
  if (qp.link.peer == nullptr) return far->can_mark.load(std::memory_order_acquire) != 0;
  if (qp.link.peer->dead.load(std::memory_order_relaxed)) return true;  // it sends no more
  return qp.link.pull_offered && far->can_mark.load(std::memory_order_acquire) != 0;
}

// Lock held.  Nothing of its own is under way, and all that came in is executed.
bool has_nothing_to_do(const SoftQp& qp) {
  if (!qp.send.is_empty() || qp.copies.jobs_in_flight != 0 || qp.drain_event) return false;
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD) return true;
  return qp.link.theirs == nullptr || qp.link.theirs->produced.load(std::memory_order_acquire) ==
                                          qp.link.mine->consumed.load(std::memory_order_relaxed);
}

// The lists of a QP's CQs.  Not waited for: a poller may hold them for as long as a large message
// takes to copy, and those who come here must not stand still with it.
class Lists {
 public:
  explicit Lists(SoftQp& qp)
      : send_(*soft(qp.send_cq)),
        recv_(*soft(qp.recv_cq)),
        hold_send_(send_.members_lock, std::try_to_lock),
        hold_recv_(recv_.members_lock, std::defer_lock) {
    held_ = hold_send_.owns_lock() && (&send_ == &recv_ || hold_recv_.try_lock());
  }
  explicit operator bool() const { return held_; }
  void add(SoftQp* qp) {
    send_.awake.push_back(qp);
    if (&send_ != &recv_) recv_.awake.push_back(qp);
  }
  void remove(SoftQp* qp) {
    std::erase(send_.awake, qp);
    if (&send_ != &recv_) std::erase(recv_.awake, qp);
  }

 private:
  SoftCq &send_, &recv_;
  std::unique_lock<std::mutex> hold_send_, hold_recv_;
  bool held_ = false;
};

bool ask_to_be_marked(SoftQp& qp) {
  std::unique_lock hold(qp.lock, std::try_to_lock);
  if (!hold.owns_lock()) return false;
  if (qp.link.mine != nullptr) qp.link.my_bell->wanted.store(kBellMark, std::memory_order_seq_cst);
  return true;
}

}  // namespace

void rouse(SoftQp& qp) {
  if (qp.hca->keys().board().mark(qp.qp_num)) qp.hca->wake_engine();
}

void Hca::look_at_marks() {
  std::unique_lock hold(lock_, std::try_to_lock);
  // What was put back is the engine's: whoever polls there may be about to stop.
  if (hold.owns_lock() && !activity_.get_up_marked(keys_->board(), qps_.by_index(), now_ns()))
    wake_engine();
}

bool Activity::get_up_marked(Board& board, const std::vector<SoftQp*>& qps, std::int64_t now) {
  bool all = true;
  board.take([&](std::uint32_t index) {
    SoftQp* qp = qps[index];
    if (qp == nullptr || get_up(*qp, now)) return;  // null: it was destroyed since
    all = false;
    (void)board.mark(index);  // for the next to look
  });
  return all;
}

void Activity::note_idle(std::int64_t now) {
  if (now - idle_noted_ < kMillisecond) return;
  idle_noted_ = now;
  ++idle_round_;
  for (SoftQp* qp : awake_) {
    for (SoftCq* cq : {soft(qp->send_cq), soft(qp->recv_cq)}) {
      if (cq->idle_round == idle_round_) continue;
      cq->idle_round = idle_round_;
      cq->idle = !cq->polled.load(std::memory_order_relaxed);
      if (!cq->idle) cq->polled.store(false, std::memory_order_relaxed);
    }
  }
}

// False: it is to be tried again.
bool Activity::get_up(SoftQp& qp, std::int64_t now) {
  qp.activity.busy_at = now;
  if (!qp.activity.asleep.load(std::memory_order_relaxed)) return true;
  Lists lists(qp);
  if (!lists) return false;
  // Without the QP's lock, which its poster may hold for as long as it copies.  A poster that still
  // reads `true` marks once more, which is of no consequence; one that reads `false` need not
  // mark, for the QP is in the lists before lock_ is left, and leaves them under both locks.
  qp.activity.asleep.store(false, std::memory_order_relaxed);
  awake_.push_back(&qp);
  lists.add(&qp);
  return true;
}

// Whether it may sleep, if nothing comes meanwhile.
bool Activity::is_drowsy(SoftQp& qp, std::int64_t now) const {
  if (!may_sleep_) return false;
  std::unique_lock hold(qp.lock, std::try_to_lock);
  if (!hold.owns_lock()) return false;
  const std::uint64_t work = work_so_far(qp);
  if (work != qp.activity.seen_work || !has_nothing_to_do(qp)) {
    qp.activity.seen_work = work;
    qp.activity.busy_at = now;
    return false;
  }
  return now - qp.activity.busy_at >= kDrowsyAfter && will_be_marked(qp);
}

void Activity::put_to_sleep(std::int64_t now) {
  if (drowsy_.empty()) return;
  if (now - slept_at_ < kFencesApart) {
    drowsy_.clear();
    return;
  }
  slept_at_ = now;
  std::erase_if(drowsy_, [](SoftQp* qp) { return !ask_to_be_marked(*qp); });
  if (!drowsy_.empty() && fence_all_threads()) {
    for (SoftQp* qp : drowsy_) {
      Lists lists(*qp);
      if (!lists || !fall_asleep(*qp)) continue;
      std::erase(awake_, qp);
      lists.remove(qp);
    }
  }
  drowsy_.clear();
}

// After the fence.  One that stays awake keeps its bell, which is rung once for nothing.
bool Activity::fall_asleep(SoftQp& qp) {
  std::unique_lock hold(qp.lock, std::try_to_lock);
  if (!hold.owns_lock() || work_so_far(qp) != qp.activity.seen_work || !has_nothing_to_do(qp))
    return false;
  // The bell may belong to a link that was made after it was set.
  if (qp.link.mine != nullptr &&
      qp.link.my_bell->wanted.load(std::memory_order_relaxed) != kBellMark)
    return false;
  qp.retry.stop();  // the retry clock starts with the next work
  qp.activity.asleep.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace twinpath::soft
