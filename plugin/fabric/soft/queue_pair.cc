// Queue pairs: life, completion in order, errors.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/requester.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

// Between two processes a direct copy is cheaper than the ring from here on.
constexpr std::uint64_t kDirectFrom = 4096;

bool atomic_or_read(const SendEntry& e) { return is_read(e) || is_atomic(e); }

ibv_wc_opcode completion_opcode(ibv_wr_opcode op) {
  switch (op) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

void complete_send(SoftQp& qp, SendEntry& e, ibv_wc_status status) {
  if (atomic_or_read(e) && e.stage == Stage::sent && qp.requester.reads_outstanding != 0)
    --qp.requester.reads_outstanding;
  qp.send.end_relay(e);
  ++qp.send.head;
  e.completion = kNoCompletion;
  e.status = static_cast<std::uint8_t>(status);
  if (status == IBV_WC_SUCCESS && !qp.signal_all && (e.flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = e.wr_id;
  wc.status = status;
  wc.opcode = completion_opcode(e.opcode);
  wc.qp_num = qp.qp_num;
  wc.byte_len = static_cast<std::uint32_t>(e.length);
  e.completion = push_completion(*soft(qp.send_cq), wc);
}

// Everything that still waits ends with its own status or as flushed.
void flush(SoftQp& qp) {
  while (!qp.send.is_empty()) {
    SendEntry& e = qp.send.entry(qp.send.head);
    if (e.jobs_left != 0) return;  // the copy engine still reads it
    complete_send(qp, e,
                  e.status != 0 ? static_cast<ibv_wc_status>(e.status) : IBV_WC_WR_FLUSH_ERR);
  }
  qp.send.exec = qp.send.sent = qp.send.head;
  for (; !qp.receive.is_empty(); ++qp.receive.head) {
    ibv_wc wc{};
    wc.wr_id = qp.receive.first().wr_id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = qp.qp_num;
    push_completion(*soft(qp.recv_cq), wc);
  }
}

void join_cq(ibv_cq* c, SoftQp* qp) {
  std::lock_guard hold(soft(c)->members_lock);
  auto& m = soft(c)->members;
  if (std::find(m.begin(), m.end(), qp) == m.end()) m.push_back(qp);
}
void leave_cq(ibv_cq* c, SoftQp* qp) {
  std::lock_guard hold(soft(c)->members_lock);
  std::erase(soft(c)->members, qp);
  std::erase(soft(c)->awake, qp);
}

void forget_wire(SoftQp& qp) {
  stop_copies(qp);
  end_split(qp);
  qp.copies.in.id = 0;
  qp.link.leave();
}

// Whether the device makes queues of that size.
bool fits(const Personality& most, const ibv_qp_cap& c, bool has_receives) {
  return c.max_send_wr <= most.queues.max_wr && c.max_send_sge <= most.queues.max_send_sge &&
         (c.max_inline_data <= most.queues.max_inline ||
          most.queues.inline_limit != InlineLimit::refuse) &&
         (!has_receives ||
          (c.max_recv_wr <= most.queues.max_wr && c.max_recv_sge <= most.queues.max_recv_sge));
}

std::uint32_t granted_inline(const Personality& most, std::uint32_t wanted) {
  if (most.queues.inline_limit == InlineLimit::ignore) return wanted;
  return std::min((wanted + 15u) & ~15u, most.queues.max_inline);
}

}  // namespace

void stop_copies(SoftQp& qp) {
  qp.hca->team().cancel(qp.copies.out);
  qp.hca->team().cancel(qp.copies.in);
}

void set_carrier(SoftQp& qp, bool up) {
  if (!up && qp.link.mine != nullptr) stop_copies(qp);
  qp.link.set_carrier(up);
}

void take_losses(SoftQp& qp) {
  const SoftDevice& d = *qp.soft_context->soft_device;
  const int port = qp.attr.port_num;
  qp.link.deaf = (d.ports_deaf.load(std::memory_order_acquire) >> port & 1) != 0;
  qp.link.unanswered = (d.ports_unanswered.load(std::memory_order_acquire) >> port & 1) != 0;
}

void reset_queues(SoftQp& qp) {
  forget_wire(qp);
  qp.attr = {};
  qp.send.reset();
  qp.receive.head = qp.receive.tail = 0;
  qp.requester = {};
  qp.retry = {};
  qp.responder = {};
  qp.update.state = QpUpdate::State::idle;
  qp.drain_event = false;
  qp.ece.reset();
}

void retire(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) {
    flush(qp);
    return;
  }
  if (qp.link.theirs == nullptr || qp.link.unanswered || qp.link.astray_from_there()) return;
  while (qp.send.head != qp.send.sent) {
    SendEntry& e = qp.send.entry(qp.send.head);
    if (e.stage == Stage::sent) {
      std::uint64_t acked = qp.link.theirs->acked.load(std::memory_order_acquire);
      if (acked < e.ack_at) {
        std::uint32_t nak = qp.link.theirs->nak.load(std::memory_order_acquire);
        // Read again: the refusal concerns the message after the last acknowledged one.
        if (nak != 0 && qp.link.theirs->acked.load(std::memory_order_acquire) + 1 == e.ack_at) {
          e.status = static_cast<std::uint8_t>(refusal(nak));
          enter_error(qp);
        }
        return;
      }
      if (atomic_or_read(e) && (e.received != e.length || e.jobs_left != 0)) return;
    } else if (e.stage != Stage::placed) {
      return;
    }
    complete_send(qp, e, IBV_WC_SUCCESS);
  }
}

void enter_error(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) return;
  qp.state = IBV_QPS_ERR;
  // Before any completion says that memory is its owner's again.
  stop_copies(qp);
  end_split(qp);
  qp.link.show(EndState::error);
  flush(qp);
  // The SRQ's other receives stay: its owner learns here that this QP takes none any more.
  if (qp.srq != nullptr) async_event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

bool advance(SoftQp& qp) {
  if (!qp.lock.try_lock()) return false;
  std::lock_guard hold(qp.lock, std::adopt_lock);
  if (!qp.link.pull_offered && qp.link.mine != nullptr && qp.link.peer != nullptr &&
      qp.link.peer->greeted.load(std::memory_order_acquire)) [[unlikely]] {
    qp.link.mine->can_pull.store(qp.link.peer->direct ? 1 : 0, std::memory_order_release);
    qp.link.mine->can_mark.store(qp.hca->may_sleep() ? 1 : 0, std::memory_order_release);
    qp.link.pull_offered = true;
  }
  bool moved = respond(qp);
  if (!qp.send.is_empty()) moved = run_send_queue(qp) || moved;
  return moved;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  auto* context = soft(pd->context);
  const ibv_qp_cap& c = init->cap;
  if (init->qp_type != IBV_QPT_RC) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  SoftSrq* srq = init->srq != nullptr ? soft(init->srq) : nullptr;
  if (init->send_cq == nullptr || init->recv_cq == nullptr ||
      (srq != nullptr && srq->context != pd->context)) {
    errno = EINVAL;
    return nullptr;
  }
  const Personality& most = like(pd->context);
  if (!fits(most, c, srq == nullptr)) {
    if (most.queues.refusal != 0) errno = most.queues.refusal;
    return nullptr;
  }
  auto qp = std::make_unique<SoftQp>();
  static_cast<ibv_qp&>(*qp) = ibv_qp{};
  qp->hca = context->hca;
  qp->soft_context = context;
  qp->context = &context->context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_type = IBV_QPT_RC;
  qp->state = IBV_QPS_RESET;
  qp->signal_all = init->sq_sig_all != 0;
  qp->srq = srq;
  // A program that others wrote may watch memory and poll no CQ: small WRITEs and READs then go
  // straight to it too.  Our own code polls, and packets are cheaper then.
  qp->direct_from = context->context.abi_compat != nullptr ? 1 : kDirectFrom;
  qp->cap = c;
  qp->cap.max_send_wr = std::max(c.max_send_wr, 1u);
  qp->cap.max_send_sge = std::max(c.max_send_sge, 1u);
  qp->cap.max_recv_wr = srq != nullptr ? 0 : std::max(c.max_recv_wr, 1u);
  qp->cap.max_recv_sge = srq != nullptr ? 0 : std::max(c.max_recv_sge, 1u);
  qp->cap.max_inline_data = granted_inline(most, c.max_inline_data);
  init->cap = qp->cap;
  if (!qp->send.allocate(qp->cap) ||
      !qp->receive.allocate(std::max(qp->cap.max_recv_wr, 1u),
                            srq != nullptr ? srq->queue.max_sge : qp->cap.max_recv_sge)) {
    errno = ENOMEM;
    return nullptr;
  }
  if (!qp->hca->add_qp(qp.get())) {
    errno = ENOMEM;
    return nullptr;
  }
  init_waiting(qp->mutex, qp->cond);
  ++static_cast<SoftPd*>(pd)->users;
  if (srq != nullptr) ++srq->users;
  join_cq(qp->send_cq, qp.get());
  join_cq(qp->recv_cq, qp.get());
  return qp.release();
}

void wait_for_engines(SoftQp& qp) {
  for (;;) {
    {
      const std::lock_guard hold(qp.lock);
      if (qp.copies.jobs_in_flight == 0) return;
    }
    sched_yield();
  }
}

int destroy_qp(ibv_qp* q) {
  SlowStep slow("destroying a queue pair");
  SoftQp* qp = soft(q);
  qp->hca->remove_qp(qp);  // first: after it nobody gets the QP up and puts it into the CQs' lists
  leave_cq(qp->send_cq, qp);
  leave_cq(qp->recv_cq, qp);
  // Nobody finds the QP any more, except a copy thread with a job of ours, which begins no other in
  // this state, nor in that of an error which the job may end in.
  {
    const std::lock_guard hold(qp->lock);
    qp->state = IBV_QPS_RESET;
  }
  wait_for_engines(*qp);
  {
    const std::lock_guard hold(qp->lock);
    forget_wire(*qp);
  }
  end_events(*qp);
  --static_cast<SoftPd*>(qp->pd)->users;
  if (qp->srq != nullptr) --soft(qp->srq)->users;
  delete qp;
  return 0;
}

}  // namespace twinpath::soft
