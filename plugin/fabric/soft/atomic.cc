// The responder's atomics.  On host memory the CPU's own; on GPU memory the copy thread of that GPU
// makes them, all of them, whichever queue pair they come from, and the responder stands still
// meanwhile: what the peer sent after an atomic is executed after it.
#include <atomic>
#include <cstring>
#include <mutex>

#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

// Copy thread: the word has changed.  It goes on in place of the owner, who may not be polling.
void update_done(CopyJob* job, Status status) {
  auto* update = static_cast<QpUpdate*>(job);
  SoftQp& qp = *update->qp;
  const std::lock_guard hold(qp.lock);
  KeyView::drop(update->held);
  update->state = status == Status::ok ? QpUpdate::State::done : QpUpdate::State::failed;
  --qp.jobs_in_flight;
  (void)respond(qp);
}

bool start_update(SoftQp& qp, const HeldKey& held, std::uint64_t address, bool compare,
                  const std::uint64_t (&operand)[2]) {
  QpUpdate& update = qp.update;
  static_cast<WordUpdate&>(update) = WordUpdate{};
  update.update = true;
  update.to = {address, held.gpu};
  update.executor = held.gpu;
  update.compare = compare;
  update.operand[0] = operand[0];
  update.operand[1] = operand[1];
  update.done = update_done;
  update.qp = &qp;
  update.held = held.count;
  update.state = QpUpdate::State::moving;
  ++qp.jobs_in_flight;
  if (submit_copy(&update) == Status::ok) return true;
  --qp.jobs_in_flight;
  update.state = QpUpdate::State::idle;
  return false;
}

std::uint64_t update_host(std::uint64_t address, bool compare, const std::uint64_t (&operand)[2]) {
  std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(address));
  if (!compare) return word.fetch_add(operand[0], std::memory_order_acq_rel);
  std::uint64_t old = operand[0];
  word.compare_exchange_strong(old, operand[1], std::memory_order_acq_rel);
  return old;
}

Executed answer(SoftQp& qp, PacketHeader* out, std::uint64_t old) {
  out->op = PacketOp::atomic_response;
  out->length = sizeof old;
  std::memcpy(out + 1, &old, sizeof old);
  publish_packet(qp, out);
  return Executed::done;
}

}  // namespace

Executed execute_atomic(SoftQp& qp, const PacketHeader& p, const std::uint8_t* payload) {
  if (qp.update.state == QpUpdate::State::moving) return Executed::wait;
  if (qp.update.state == QpUpdate::State::failed) return Executed::failed;
  PacketHeader* out = reserve_packet(qp, sizeof(std::uint64_t));
  if (out == nullptr) return Executed::wait;
  if (qp.update.state == QpUpdate::State::done) {
    qp.update.state = QpUpdate::State::idle;
    return answer(qp, out, qp.update.old);
  }
  const HeldKey e =
      hold_any_target(qp, p.rkey, p.address, sizeof(std::uint64_t), IBV_ACCESS_REMOTE_ATOMIC);
  if (!e) return Executed::refused;
  const bool compare = (p.flags & kCompareSwap) != 0;
  std::uint64_t operand[2];
  std::memcpy(operand, payload, sizeof operand);
  const std::uint64_t address = e.base + (p.address - e.iova);
  if (address % sizeof(std::uint64_t) != 0) {
    KeyView::drop(e);
    return Executed::refused;
  }
  if (e.kind == static_cast<std::uint32_t>(MemoryKind::cuda)) {
    if (start_update(qp, e, address, compare, operand)) return Executed::wait;
    KeyView::drop(e);
    return Executed::failed;
  }
  const std::uint64_t old = update_host(address, compare, operand);
  KeyView::drop(e);
  return answer(qp, out, old);
}

}  // namespace twinpath::soft
