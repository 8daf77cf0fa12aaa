// See work_queue.h.  WAIT is in work_queue_wait.cc.
#include "gda/served/front/work_queue.h"

#include <algorithm>
#include <utility>

#include "gda/abi/cqe.h"
#include "gda/served/front/fetch.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

WorkQueue::WorkQueue(const WorkQueueSetup& setup, BackEnd& back_end, CqeWriter& cq, FindCq find_cq)
    : setup_(setup),
      back_end_(back_end),
      cq_(cq),
      find_cq_(std::move(find_cq)),
      taken_(setup.depth),
      rung_(setup.first),
      head_(setup.first),
      done_(setup.first),
      produced_(setup.first),
      late_(setup.patience_ns, setup.data_patience_ns) {
  for (std::uint64_t i = 0; i < setup_.depth; ++i) poison_slot(slot(i), setup_.poison);
}

int WorkQueue::scan(int budget) {
  look_at_doorbell();
  int taken = 0;
  while (taken < budget && state_ == QueueState::ready && head_ < rung_ && take()) ++taken;
  if (issued_) {
    issued_ = false;
    back_end_.flush();
  }
  settle();
  taken += flush_rung(budget - taken);
  flush_cq();
  return taken;
}

void WorkQueue::complete(std::uint64_t index) {
  if (index >= head_) return;
  done_ = std::max(done_, index + 1);
  settle();
  flush_cq();
}

void WorkQueue::fail(std::uint64_t index, Syndrome syndrome) {
  if (drained_) return;
  // Not something that was issued: the first that is not done, or on an idle queue the next.
  if (index < done_ || index >= head_) index = done_;
  if (state_ == QueueState::error && index >= failure_.index) return;
  done_ = index;
  kill(index, syndrome, index < head_ ? taken(index).opcode : std::uint8_t{0});
  settle();
  flush_cq();
}

void WorkQueue::look_at_doorbell() {
  // Partner: the kernel's release before it rings (Producer::ring).
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(*setup_.doorbell))
          .load(std::memory_order_acquire);
  std::uint64_t count = word;
  bool sane = true;
  if (setup_.doorbell_kind == DoorbellKind::adapter) {
    sane = word == 0 || adapter_doorbell_qpn(word) == setup_.qpn;
    const std::int32_t ahead = word == 0 ? 0 : adapter_doorbell_ahead(word, rung_);
    // Kernels of 2.30 that use no record ring without a lock, so a ring may come after a newer
    // one.  An adapter passes over it, and so does this.
    if (sane && ahead <= 0) return;
    count = rung_ + static_cast<std::uint64_t>(ahead);
  }
  if (sane && count == rung_) return;
  // A slot is free only once its CQE is written, so nobody can honestly be more than one lap
  // ahead of the CQEs; nor does the count ever go back, which kernels only raise.
  if (sane && count > rung_ && count <= produced_ + setup_.depth) {
    rung_ = count;
    if (setup_.counts != nullptr) setup_.counts->doorbells.add(1);
  } else if (state_ == QueueState::ready) {
    kill(head_, Syndrome::local_qp_operation, 0);
  }
}

void WorkQueue::count(std::size_t operation) {
  if (setup_.counts != nullptr) setup_.counts->operations[operation].add(1);
}

bool WorkQueue::take() {
  if (!have_pending_ && !fetch_head()) return false;
  if (pending_.syndrome != Syndrome::none) {
    kill(head_, pending_.syndrome, pending_.opcode);
    return true;
  }
  return pending_.wait ? take_wait() : take_operation();
}

bool WorkQueue::fetch_head() {
  const WqeWords words = copy_wqe(slot(head_));
  const Written written = look_at(words, head_, setup_.qpn, setup_.poison);
  const bool but_for_data = written == Written::but_for_data;
  if (written != Written::whole) {
    if (late_.may_come(but_for_data, now_ns())) return false;
    if (!but_for_data)
      TP_WARN(
          "GIN queue 0x%x: work request %llu was announced %lld ms ago and has not come whole; the "
          "kernel rings for what it did not write, or the GPU's writes to host memory are lost",
          setup_.qpn, static_cast<unsigned long long>(head_),
          static_cast<long long>(setup_.patience_ns / kMillisecond));
  }
  late_.end(but_for_data);
  pending_ = decode(words, head_, setup_.qpn, *setup_.keys, setup_.peer);
  have_pending_ = true;
  known_blocked_ = false;
  return true;
}

bool WorkQueue::take_operation() {
  const std::uint64_t index = head_;
  taken(index) = {pending_.opcode, false};
  head_ = index + 1;  // before issue(): a back end may complete or fail it there and then
  switch (back_end_.issue(index, pending_.operation)) {
    case Issued::accepted:
      count(static_cast<std::size_t>(pending_.operation.kind));
      have_pending_ = false;
      issued_ = true;
      return true;
    case Issued::full:
      if (state_ == QueueState::ready) head_ = index;
      return false;
    case Issued::failed:
      fail(index, Syndrome::local_qp_operation);
      return true;
  }
  return false;
}

// From here on nothing is taken.  WQEs before `index` still end well, if they do.
void WorkQueue::kill(std::uint64_t index, Syndrome syndrome, std::uint8_t opcode) {
  state_ = QueueState::error;
  failure_ = {index, syndrome, opcode};
  have_pending_ = false;
  failed_.store(true, std::memory_order_relaxed);
}

void WorkQueue::settle() {
  const bool error = state_ == QueueState::error && !drained_;
  const std::uint64_t limit = error ? failure_.index : head_;
  while (done_ < limit && taken(done_).wait) ++done_;  // satisfied when it was taken
  while (produced_ < done_) retire(taken(produced_).opcode, Syndrome::none);
  if (!error || produced_ != failure_.index) return;
  retire(failure_.opcode, failure_.syndrome);
  head_ = done_ = produced_;
  drained_ = true;
}

int WorkQueue::flush_rung(int budget) {
  int flushed = 0;
  for (; drained_ && flushed < budget && produced_ < rung_; ++flushed) {
    const std::uint64_t control = copy_wqe(slot(produced_))[0];
    const bool written = control != setup_.poison;
    retire(written ? static_cast<std::uint8_t>(first_dword(control)) : std::uint8_t{0},
           Syndrome::flushed);
    head_ = done_ = produced_;
  }
  return flushed;
}

// The slot first, the CQE second: once the kernel sees the CQE it may write the slot again, and
// poison that came after that would destroy its WQE.  The writer's release (or, for a CQ in GPU
// memory, its copy, submitted later) keeps the order.
void WorkQueue::retire(std::uint8_t opcode, Syndrome syndrome) {
  poison_slot(slot(produced_), setup_.poison);
  CqeBytes cqe;
  if (syndrome == Syndrome::none)
    make_cqe(cqe, produced_, setup_.depth, setup_.qpn, opcode, 0);
  else
    make_error_cqe(cqe, produced_, setup_.depth, setup_.qpn, opcode, syndrome);
  cq_.write(produced_, cqe);
  ++produced_;
  written_ = true;
}

void WorkQueue::flush_cq() {
  if (!written_) return;
  written_ = false;
  cq_.flush();
}

}  // namespace twinpath::gda
