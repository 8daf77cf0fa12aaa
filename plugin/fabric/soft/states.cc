// The state machine of a queue pair: ibv_modify_qp and ibv_query_qp.
#include <algorithm>
#include <cerrno>
#include <mutex>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

constexpr int kAltPath = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;

// What a transition of an RC QP must bring and may bring (IB specification vol. 1, 11.2.5.2,
// table 91).
struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kAltPath},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kAltPath},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kAltPath},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_PORT |
         IBV_QP_AV | kAltPath},
};

// 0 when the attributes of `mask` are in the range that the device has.
int check_values(const SoftQp& qp, const ibv_qp_attr& a, int mask) {
  const auto given = [mask](int bit) { return (mask & bit) != 0; };
  const DeviceSpec& spec = qp.soft_context->soft_device->spec;
  const Personality& like = *spec.like;
  const bool bad =
      (given(IBV_QP_PORT) && (a.port_num < 1 || a.port_num > spec.ports)) ||
      (given(IBV_QP_PKEY_INDEX) && a.pkey_index >= spec.pkeys.size()) ||
      (given(IBV_QP_CUR_STATE) && a.cur_qp_state != qp.state) ||
      (given(IBV_QP_PATH_MTU) && (a.path_mtu < IBV_MTU_256 || a.path_mtu > IBV_MTU_4096)) ||
      (given(IBV_QP_TIMEOUT) && a.timeout > 31) || (given(IBV_QP_RETRY_CNT) && a.retry_cnt > 7) ||
      (given(IBV_QP_RNR_RETRY) && a.rnr_retry > 7) ||
      (given(IBV_QP_MIN_RNR_TIMER) && a.min_rnr_timer > 31) ||
      (given(IBV_QP_MAX_QP_RD_ATOMIC) && a.max_rd_atomic > like.queues.reads_out) ||
      (given(IBV_QP_MAX_DEST_RD_ATOMIC) && a.max_dest_rd_atomic > like.queues.reads_in);
  return bad ? EINVAL : 0;
}

int check_address(const SoftQp& qp, const ibv_qp_attr& a) {
  const SoftDevice& d = *qp.soft_context->soft_device;
  if (a.ah_attr.port_num < 1 || a.ah_attr.port_num > d.spec.ports) return EINVAL;
  const GidKind kind = gid_kind(d.like(), a.ah_attr.grh.sgid_index);
  if (a.ah_attr.is_global == 0 ? !d.like().ports.infiniband : !kind.used) return EINVAL;
  // An address of another host, user or job has another hash: no route to it.
  const PortAddresses& own = qp.hca->addresses();
  if (a.ah_attr.is_global == 0 ? own.is_own(a.ah_attr.dlid) : own.is_own(a.ah_attr.grh.dgid, kind))
    return 0;
  TP_WARN(
      "soft HCA %s: no route to the peer's address: it is on another host, of another user or in "
      "another job (TWINPATH_SOFT_JOB); the soft HCA joins processes of one host, user and job "
      "only",
      d.name);
  return EHOSTUNREACH;
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
  if ((mask & IBV_QP_ALT_PATH) != 0) {
    t.alt_ah_attr = a.alt_ah_attr;  // kept for query_qp; there is no path to move to
    t.alt_port_num = a.alt_port_num;
    t.alt_pkey_index = a.alt_pkey_index;
    t.alt_timeout = a.alt_timeout;
  }
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0) t.path_mig_state = a.path_mig_state;
  if ((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0) t.en_sqd_async_notify = a.en_sqd_async_notify;
}

}  // namespace

int modify_qp(ibv_qp* q, ibv_qp_attr* a, int mask) {
  SoftQp& qp = *soft(q);
  bool to_rtr = false;
  {
    std::unique_lock hold(qp.lock);
    const ibv_qp_state from = qp.state;
    const ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? a->qp_state : from;
    if (next == IBV_QPS_RESET) {
      if (qp.copies.jobs_in_flight != 0) return EBUSY;
      reset_queues(qp);
      qp.state = next;
      return 0;
    }
    if (next == IBV_QPS_ERR) {
      if (from == IBV_QPS_RESET) return EINVAL;
      enter_error(qp);
      qp.attr.qp_state = next;  // by its owner: see check_state in post.cc
      hold.unlock();
      // An adapter's command returns when nothing is written any more.
      const SlowStep slow("a queue pair's move to error");
      wait_for_engines(qp);
      return 0;
    }
    const auto* t = std::find_if(std::begin(kTransitions), std::end(kTransitions), [&](auto& x) {
      return x.from == from && x.to == next && (mask & x.required) == x.required &&
             (mask & ~(x.required | x.optional | IBV_QP_STATE)) == 0;
    });
    if (t == std::end(kTransitions)) return EINVAL;
    if (from != next && qp.hca->faults().next_move_fails(next)) [[unlikely]]
      return ETIMEDOUT;
    if (int rc = check_values(qp, *a, mask); rc != 0) return rc;
    if ((mask & IBV_QP_AV) != 0) {
      if (int rc = check_address(qp, *a); rc != 0) return rc;
    }
    to_rtr = from == IBV_QPS_INIT && next == IBV_QPS_RTR;
    copy_attributes(qp, *a, mask);
    qp.state = next;
    if (from == IBV_QPS_RTS && next == IBV_QPS_SQD)
      qp.drain_event = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && a->en_sqd_async_notify != 0;
    if (qp.link.mine != nullptr) {
      qp.link.mine->access.store(qp.attr.qp_access_flags, std::memory_order_relaxed);
      qp.link.mine->rnr_timer.store(qp.attr.min_rnr_timer, std::memory_order_relaxed);
    }
    if ((mask & IBV_QP_PORT) != 0)
      set_carrier(qp, qp.soft_context->soft_device->carries(qp.attr.port_num));
    // What was posted while it drained.
    if (from == IBV_QPS_SQD && next == IBV_QPS_RTS) (void)run_send_queue(qp);
    rouse_if_asleep(qp);  // what it may do is another matter now
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
  a->sq_draining = qp.state == IBV_QPS_SQD && !qp.send.is_drained() ? 1 : 0;
  a->cap = qp.cap;
  *init = {};
  init->qp_context = qp.qp_context;
  init->send_cq = qp.send_cq;
  init->recv_cq = qp.recv_cq;
  init->srq = qp.srq;
  init->cap = qp.cap;
  init->qp_type = qp.qp_type;
  init->sq_sig_all = qp.signal_all ? 1 : 0;
  return 0;
}

}  // namespace twinpath::soft
