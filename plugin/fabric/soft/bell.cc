// Waking the engine thread.  A process that polls its CQs needs no engine; one that waits for
// completion events, or only for bytes to change in its memory, does.  Its side of the link then
// says so (LinkEnd::bell) and the far end wakes its engine after putting something on the wire.
//
// Between "bell set, then ring looked at" here and "ring filled, then bell looked at" there stands
// no full fence, because the second is the data path of everybody: in that window of some 100 ns
// a wake can be lost, and the engine's own look, once a millisecond, replaces it.
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

void ring_far_bell(SoftQp& qp) {
  // Not for what needs no hand at the far end (direct copies), nor twice for the same.
  const std::uint64_t told = qp.mine->produced.load(std::memory_order_relaxed) +
                             qp.mine->consumed.load(std::memory_order_relaxed);
  if (told == qp.told) return;
  qp.told = told;
  if (qp.theirs->bell.exchange(0, std::memory_order_acq_rel) == 0) return;
  if (qp.peer == nullptr) {
    qp.hca->wake_engine();
  } else if (!qp.peer->dead.load(std::memory_order_relaxed)) {
    send_wake(qp.peer->socket.get(), qp.hca->slot());
  }
}

void want_bell(SoftQp& qp, bool patient) {
  std::unique_lock hold(qp.lock, std::defer_lock);
  if (patient) {
    hold.lock();
  } else if (!hold.try_lock()) {
    return;
  }
  if (qp.mine == nullptr || qp.mine->bell.load(std::memory_order_relaxed) != 0) return;
  qp.mine->bell.store(1, std::memory_order_seq_cst);
}

}  // namespace twinpath::soft
