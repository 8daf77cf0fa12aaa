// Queue pairs: life, states, completion in order, errors.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

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
  if (atomic_or_read(e) && e.stage == Stage::sent && qp.reads_outstanding != 0)
    --qp.reads_outstanding;
  ++qp.sq_head;
  if (status == IBV_WC_SUCCESS && !qp.signal_all && (e.flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = e.wr_id;
  wc.status = status;
  wc.opcode = completion_opcode(e.opcode);
  wc.qp_num = qp.qp_num;
  wc.byte_len = static_cast<std::uint32_t>(e.length);
  push_completion(*soft(qp.send_cq), wc);
}

// Everything that still waits ends with its own status or as flushed.
void flush(SoftQp& qp) {
  while (qp.sq_head != qp.sq_tail) {
    SendEntry& e = qp.entry(qp.sq_head);
    if (e.stage == Stage::moving && e.jobs_left != 0) return;  // the copy engine still reads it
    complete_send(qp, e,
                  e.status != 0 ? static_cast<ibv_wc_status>(e.status) : IBV_WC_WR_FLUSH_ERR);
  }
  qp.sq_exec = qp.sq_sent = qp.sq_head;
  while (qp.rq_head != qp.rq_tail) {
    ibv_wc wc{};
    wc.wr_id = qp.rq[qp.rq_head++].wr_id;
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
}

void forget_wire(SoftQp& qp) {
  if (qp.mine != nullptr) {
    qp.mine->state.store(static_cast<std::uint32_t>(EndState::closed), std::memory_order_release);
  }
  qp.mine = qp.theirs = nullptr;
  qp.out_ring = qp.in_ring = nullptr;
  qp.link.reset();
  qp.peer.reset();
  qp.unreachable = false;
}

void reset(SoftQp& qp) {
  forget_wire(qp);
  qp.sq_head = qp.sq_sent = qp.sq_exec = qp.sq_tail = 0;
  qp.rq_head = qp.rq_tail = 0;
  qp.messages = qp.last_data_message = qp.seen_acked = 0;
  qp.reads_outstanding = 0;
  qp.waiting_since = 0;
  qp.rnr_reported = qp.pull_offered = qp.no_pull = false;
  qp.pull_stalled = 0;
  qp.pull_id = 0;
  qp.send_offset = qp.read_offset = 0;
}

// IB specification vol. 1, 11.2.5.2 (table 91): what a transition must bring.
struct Transition {
  ibv_qp_state from, to;
  int required;
};
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0},
};

int check_address(const SoftQp& qp, const ibv_qp_attr& a) {
  const SoftDevice& d = *qp.soft_context->soft_device;
  if (a.ah_attr.port_num < 1 || a.ah_attr.port_num > d.spec.ports) return EINVAL;
  if (a.ah_attr.is_global == 0) return EINVAL;  // RoCE needs a GID
  if (a.ah_attr.grh.sgid_index >= kGidEntries) return EINVAL;
  if (a.path_mtu < IBV_MTU_256 || a.path_mtu > IBV_MTU_4096) return EINVAL;
  // An address of another host or job has another hash: no route to it.
  ibv_gid own = qp.hca->gid(d, 1, a.ah_attr.grh.sgid_index);
  const auto& to = a.ah_attr.grh.dgid;
  const bool mapped = a.ah_attr.grh.sgid_index == 1;
  if (std::memcmp(own.raw, to.raw, mapped ? 14 : 12) == 0) return 0;
  TP_WARN(
      "soft HCA %s: no route to the peer's address: it is on another host or in another job "
      "(TWINPATH_SOFT_JOB); the soft HCA joins processes of one host, user and job only",
      d.name);
  return ETIMEDOUT;
}

void copy_attributes(SoftQp& qp, const ibv_qp_attr& a, int mask) {
  ibv_qp_attr& t = qp.attr;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) t.pkey_index = a.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) t.port_num = a.port_num;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) t.qp_access_flags = a.qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) t.ah_attr = a.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) t.path_mtu = a.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) t.dest_qp_num = a.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) t.rq_psn = a.rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) t.sq_psn = a.sq_psn;
  if ((mask & IBV_QP_TIMEOUT) != 0) t.timeout = a.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) t.retry_cnt = a.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) t.rnr_retry = a.rnr_retry;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) t.min_rnr_timer = a.min_rnr_timer;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) t.max_rd_atomic = a.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) t.max_dest_rd_atomic = a.max_dest_rd_atomic;
}

}  // namespace

void retire(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) {
    flush(qp);
    return;
  }
  if (qp.theirs == nullptr) return;
  while (qp.sq_head != qp.sq_sent) {
    SendEntry& e = qp.entry(qp.sq_head);
    if (e.stage == Stage::sent) {
      std::uint64_t acked = qp.theirs->acked.load(std::memory_order_acquire);
      if (acked < e.ack_at) {
        std::uint32_t nak = qp.theirs->nak.load(std::memory_order_acquire);
        // Read again: the refusal concerns the message after the last acknowledged one.
        if (nak != 0 && qp.theirs->acked.load(std::memory_order_acquire) + 1 == e.ack_at) {
          e.status = static_cast<std::uint8_t>(nak);
          enter_error(qp);
        }
        return;
      }
      if (atomic_or_read(e) && e.received != e.length) return;
    } else if (e.stage != Stage::placed) {
      return;
    }
    complete_send(qp, e, IBV_WC_SUCCESS);
  }
}

void enter_error(SoftQp& qp) {
  if (qp.state == IBV_QPS_ERR) return;
  qp.state = IBV_QPS_ERR;
  if (qp.mine != nullptr)
    qp.mine->state.store(static_cast<std::uint32_t>(EndState::error), std::memory_order_release);
  flush(qp);
}

bool advance(SoftQp& qp) {
  if (!qp.lock.try_lock()) return false;
  std::lock_guard hold(qp.lock, std::adopt_lock);
  if (!qp.pull_offered && qp.mine != nullptr && qp.peer != nullptr &&
      qp.peer->greeted.load(std::memory_order_acquire)) {
    qp.mine->can_pull.store(qp.peer->direct ? 1 : 0, std::memory_order_release);
    qp.pull_offered = true;
  }
  bool moved = respond(qp);
  if (qp.sq_head != qp.sq_tail) moved = run_send_queue(qp) || moved;
  return moved;
}

std::int64_t retry_limit_ns(const SoftQp& qp) {
  if (qp.attr.timeout == 0) return 0;
  return (std::int64_t{qp.attr.retry_cnt} + 1) * (std::int64_t{4096} << qp.attr.timeout);
}

void check_timers(SoftQp& qp, std::int64_t now) {
  std::unique_lock hold(qp.lock, std::try_to_lock);
  if (!hold.owns_lock() || qp.state != IBV_QPS_RTS) return;
  if (qp.sq_head == qp.sq_tail) {
    qp.waiting_since = 0;
    return;
  }
  std::uint64_t acked = qp.theirs != nullptr ? qp.theirs->acked.load(std::memory_order_acquire) : 0;
  // Copy engines answer for themselves; a progress of the peer starts the clock anew.
  if (qp.jobs_in_flight != 0 || acked != qp.seen_acked || qp.waiting_since == 0) {
    qp.seen_acked = acked;
    qp.waiting_since = now;
  }
  SendEntry& first = qp.entry(qp.sq_head);
  const bool dead = qp.unreachable || (qp.peer != nullptr && qp.peer->dead.load());
  const bool rnr = qp.theirs != nullptr && qp.theirs->rnr.load(std::memory_order_acquire) != 0;
  std::int64_t waited = now - qp.waiting_since;
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (dead && qp.jobs_in_flight == 0 && waited > 10 * kMillisecond) {
    // A dead process never answers; the transport's retries would only find it out later.
    status = IBV_WC_RETRY_EXC_ERR;
  } else if (rnr) {
    // min_rnr_timer code 12 is 0.64 ms, the code that NCCL uses; others are taken alike.
    if (qp.attr.rnr_retry != 7 && waited > (qp.attr.rnr_retry + 1) * kMillisecond)
      status = IBV_WC_RNR_RETRY_EXC_ERR;
  } else if (std::int64_t limit = retry_limit_ns(qp); limit != 0 && waited > limit) {
    status = IBV_WC_RETRY_EXC_ERR;
  }
  if (status == IBV_WC_SUCCESS) return;
  first.status = static_cast<std::uint8_t>(status);
  enter_error(qp);
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  auto* context = static_cast<SoftContext*>(pd->context);
  const ibv_qp_cap& c = init->cap;
  if (init->qp_type != IBV_QPT_RC || init->srq != nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (init->send_cq == nullptr || init->recv_cq == nullptr || c.max_send_wr > kMaxWr ||
      c.max_recv_wr > kMaxWr || c.max_send_sge > kMaxSge || c.max_recv_sge > kMaxSge ||
      c.max_inline_data > kMaxInline) {
    errno = EINVAL;
    return nullptr;
  }
  auto qp = std::make_unique<SoftQp>();
  static_cast<ibv_qp&>(*qp) = ibv_qp{};
  qp->hca = context->hca;
  qp->soft_context = context;
  qp->context = context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_type = IBV_QPT_RC;
  qp->state = IBV_QPS_RESET;
  qp->signal_all = init->sq_sig_all != 0;
  qp->cap = c;
  qp->cap.max_send_wr = std::max(c.max_send_wr, 1u);
  qp->cap.max_recv_wr = std::max(c.max_recv_wr, 1u);
  qp->cap.max_send_sge = std::max(c.max_send_sge, 1u);
  qp->cap.max_recv_sge = std::max(c.max_recv_sge, 1u);
  qp->cap.max_inline_data = (c.max_inline_data + 15u) & ~15u;
  init->cap = qp->cap;
  const std::uint32_t n = qp->cap.max_send_wr, m = qp->cap.max_recv_wr;
  if (!qp->sq.allocate(n) || !qp->sq_sges.allocate(n * qp->cap.max_send_sge) ||
      !qp->sq_inline.allocate(n * qp->cap.max_inline_data) || !qp->rq.allocate(m) ||
      !qp->rq_sges.allocate(m * qp->cap.max_recv_sge)) {
    errno = ENOMEM;
    return nullptr;
  }
  qp->qp_num = qp->hca->add_qp(qp.get());
  if (qp->qp_num == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  ++static_cast<SoftPd*>(pd)->users;
  join_cq(qp->send_cq, qp.get());
  join_cq(qp->recv_cq, qp.get());
  return qp.release();
}

int modify_qp(ibv_qp* q, ibv_qp_attr* a, int mask) {
  SoftQp& qp = *soft(q);
  bool to_rtr = false;
  {
    std::lock_guard hold(qp.lock);
    ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? a->qp_state : qp.state;
    if (next == IBV_QPS_RESET) {
      if (qp.jobs_in_flight != 0) return EBUSY;
      reset(qp);
      qp.state = next;
      return 0;
    }
    if (next == IBV_QPS_ERR) {
      if (qp.state == IBV_QPS_RESET) return EINVAL;
      enter_error(qp);
      return 0;
    }
    const auto* t = std::find_if(std::begin(kTransitions), std::end(kTransitions), [&](auto& x) {
      return x.from == qp.state && x.to == next && (mask & x.required) == x.required;
    });
    if (t == std::end(kTransitions)) return EINVAL;
    if ((mask & IBV_QP_PORT) != 0 &&
        (a->port_num < 1 || a->port_num > qp.soft_context->soft_device->spec.ports))
      return EINVAL;
    if ((mask & IBV_QP_PKEY_INDEX) != 0 && a->pkey_index != 0) return EINVAL;
    to_rtr = qp.state == IBV_QPS_INIT && next == IBV_QPS_RTR;
    if (to_rtr) {
      if (int rc = check_address(qp, *a); rc != 0) return rc;
    }
    copy_attributes(qp, *a, mask);
    qp.state = next;
    if (qp.mine != nullptr)
      qp.mine->access.store(qp.attr.qp_access_flags, std::memory_order_relaxed);
  }
  if (to_rtr) {
    Status s = qp.hca->attach(qp);
    if (s == Status::no_memory) return ENOMEM;
    if (s != Status::ok) return EIO;
  }
  return 0;
}

int query_qp(ibv_qp* q, ibv_qp_attr* a, int, ibv_qp_init_attr* init) {
  SoftQp& qp = *soft(q);
  std::lock_guard hold(qp.lock);
  *a = qp.attr;
  a->qp_state = a->cur_qp_state = qp.state;
  a->cap = qp.cap;
  *init = {};
  init->qp_context = qp.qp_context;
  init->send_cq = qp.send_cq;
  init->recv_cq = qp.recv_cq;
  init->cap = qp.cap;
  init->qp_type = IBV_QPT_RC;
  init->sq_sig_all = qp.signal_all ? 1 : 0;
  return 0;
}

int destroy_qp(ibv_qp* q) {
  SlowStep slow("destroying a queue pair");
  SoftQp* qp = soft(q);
  leave_cq(qp->send_cq, qp);
  leave_cq(qp->recv_cq, qp);
  qp->hca->remove_qp(qp);
  // Nobody finds the QP any more, except a copy thread with a job of ours: wait for it.  Copy
  // engines always come to an end.
  for (bool busy = true; busy;) {
    {
      std::lock_guard hold(qp->lock);
      qp->state = IBV_QPS_RESET;
      busy = qp->jobs_in_flight != 0;
      if (!busy) forget_wire(*qp);
    }
    if (busy) sched_yield();
  }
  --static_cast<SoftPd*>(qp->pd)->users;
  delete qp;
  return 0;
}

}  // namespace twinpath::soft
