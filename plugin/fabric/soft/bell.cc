// Telling the far end that there is something on the wire, where it asked for that
// (LinkWords::bell):
//   kBellWake  its engine thread is to be woken.  A process that polls its CQs needs no engine; one
//              that waits for completion events, or only for bytes to change in its memory, does.
//   kBellMark  the queue pair sleeps (activity.cc) and is to be marked on the notice board.
//
// Between "bell set, then ring looked at" here and "ring filled, then bell looked at" there stands
// no full fence, because the second is the data path of everybody.  For kBellWake a wake can be
// lost in that window of some 100 ns, and the engine's own look, once a millisecond, replaces it.
// A queue pair that sleeps has no such look: for kBellMark activity.cc closes the window.
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

void ring_far_bell(SoftQp& qp) {
  // Not for what needs no hand at the far end (direct copies), nor twice for the same.
  const std::uint64_t told = qp.link.mine->produced.load(std::memory_order_relaxed) +
                             qp.link.mine->consumed.load(std::memory_order_relaxed);
  if (told == qp.requester.told) return;
  qp.requester.told = told;
  const std::uint32_t wanted = qp.link.their_bell->wanted.exchange(0, std::memory_order_acq_rel);
  bool wake = (wanted & kBellWake) != 0;
  if ((wanted & kBellMark) != 0 &&
      (qp.link.peer == nullptr || qp.link.peer->greeted.load(std::memory_order_acquire))) {
    // Only asked for when we said that we can (can_mark), which we do when the peer has greeted.
    Board& board = qp.link.peer == nullptr ? qp.hca->keys().board() : *qp.link.peer->board;
    wake = board.mark(qp.attr.dest_qp_num) || wake;
  }
  if (!wake) return;
  if (qp.link.peer == nullptr) {
    qp.hca->wake_engine();
  } else if (!qp.link.peer->dead.load(std::memory_order_relaxed)) {
    qp.link.peer->wire.send_wake(qp.hca->slot());
  }
}

void want_bell(SoftQp& qp, bool patient) {
  std::unique_lock hold(qp.lock, std::defer_lock);
  if (patient) {
    hold.lock();
  } else if (!hold.try_lock()) {
    return;
  }
  if (qp.link.mine == nullptr || qp.link.my_bell->wanted.load(std::memory_order_relaxed) != 0)
    return;
  qp.link.my_bell->wanted.store(kBellWake, std::memory_order_seq_cst);
}

}  // namespace twinpath::soft
