// The responder's atomics.  On host memory the CPU's own; on GPU memory the copy thread of that GPU
// makes them, all of them, whichever queue pair they come from, and the responder stands still
// meanwhile: what the peer sent after an atomic is executed after it.
#include <atomic>
#include <cstring>
#include <mutex>

#include "plugin/base/clock.h"
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
  --qp.copies.jobs_in_flight;
  (void)respond(qp);
}

bool start_update(SoftQp& qp, const HeldKey& held, std::uint64_t address,
                  const gpu::WordOperation& operation) {
  QpUpdate& update = qp.update;
  static_cast<WordUpdate&>(update) = WordUpdate{};
  static_cast<gpu::WordOperation&>(update) = operation;
  update.update = true;
  update.to = {address, held.gpu};
  update.executor = held.gpu;
  update.done = update_done;
  update.qp = &qp;
  update.held = held.count;
  update.state = QpUpdate::State::moving;
  ++qp.copies.jobs_in_flight;
  if (submit_copy(&update) == Status::ok) return true;
  --qp.copies.jobs_in_flight;
  update.state = QpUpdate::State::idle;
  return false;
}

std::uint64_t update_host(std::uint64_t address, const gpu::WordOperation& operation) {
  std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(address));
  if (operation.plain() && !operation.compare)
    return word.fetch_add(operation.operand[0], std::memory_order_acq_rel);
  std::uint64_t old = word.load(std::memory_order_acquire);
  // A swap that does not take place writes nothing.
  for (std::uint64_t now = operation.result(old);
       !(operation.compare && now == old) &&
       !word.compare_exchange_weak(old, now, std::memory_order_acq_rel);)
    now = operation.result(old);
  return old;
}

// The fault split_us: what a CPU does to the word in between is lost.
Executed update_split(SoftQp& qp, std::uint64_t address, const gpu::WordOperation& operation,
                      std::uint64_t& old) {
  std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(address));
  if (qp.split.due == 0) {
    if (!qp.hca->faults().begin_split(&qp)) return Executed::wait;
    qp.split.old = word.load(std::memory_order_acquire);
    qp.split.due = now_ns() + qp.hca->faults().split_us() * 1000;
  }
  if (now_ns() < qp.split.due) return Executed::wait;
  old = qp.split.old;
  const std::uint64_t now = operation.result(old);
  if (!operation.compare || now != old) word.store(now, std::memory_order_release);
  end_split(qp);
  return Executed::done;
}

Executed answer(SoftQp& qp, PacketHeader* out, std::uint64_t old) {
  out->op = PacketOp::atomic_response;
  out->length = sizeof old;
  std::memcpy(out + 1, &old, sizeof old);
  publish_packet(qp, out);
  return Executed::done;
}

}  // namespace

void end_split(SoftQp& qp) {
  if (qp.split.due == 0) return;
  qp.split.due = 0;
  qp.hca->faults().end_split();
}

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
  gpu::WordOperation operation;
  operation.compare = (p.flags & kCompareSwap) != 0;
  std::memcpy(operation.operand, payload, sizeof operation.operand);
  const std::uint64_t address = e.base + (p.address - e.iova);
  if (address % sizeof(std::uint64_t) != 0) {
    KeyView::drop(e);
    return Executed::refused;
  }
  if (e.kind == static_cast<std::uint32_t>(MemoryKind::cuda)) {
    // It reads, and that pushes what was posted before it.
    if (PostedWrites& posted = qp.hca->posted(); posted.on() && !posted.push(e.pd, e.gpu)) {
      KeyView::drop(e);
      return Executed::wait;
    }
    if (start_update(qp, e, address, operation)) return Executed::wait;
    KeyView::drop(e);
    return Executed::failed;
  }
  std::uint64_t old = 0;
  Executed executed = Executed::done;
  if (qp.hca->faults().split_us() != 0) [[unlikely]] {
    executed = update_split(qp, address, operation, old);
  } else {
    old = update_host(address, operation);
  }
  KeyView::drop(e);
  return executed == Executed::done ? answer(qp, out, old) : executed;
}

}  // namespace twinpath::soft
