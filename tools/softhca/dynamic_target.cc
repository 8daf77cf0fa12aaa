// Targets of dynamically connected transport (DCT), which libmlx5 makes (mlx5dv_create_qp): they
// have a number and states, and nothing ever arrives, because dynamic initiators are not carried
// out.
#include "tools/softhca/facade.h"

namespace twinpath::softhca {

int modify_dynamic_target(ibv_qp* qp, const ibv_qp_attr* attr, int mask) {
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  constexpr int kReady = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER;
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  bool allowed = false;
  switch (attr->qp_state) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
      allowed = mask == IBV_QP_STATE;
      break;
    case IBV_QPS_INIT:
      allowed = qp->state == IBV_QPS_RESET && (mask & kInit) == kInit;
      break;
    case IBV_QPS_RTR:
      allowed = qp->state == IBV_QPS_INIT && (mask & kReady) == kReady;
      break;
    default:  // it receives, and never sends
      break;
  }
  if (!allowed) return EINVAL;
  qp->state = attr->qp_state;
  return 0;
}

int query_dynamic_target(const ibv_qp* qp, ibv_qp_attr* attr, ibv_qp_init_attr* init) {
  *attr = {};
  attr->qp_state = attr->cur_qp_state = qp->state;
  *init = {};
  init->qp_type = IBV_QPT_DRIVER;
  init->qp_context = qp->qp_context;
  init->send_cq = qp->send_cq;
  init->recv_cq = qp->recv_cq;
  init->srq = qp->srq;
  return 0;
}

}  // namespace twinpath::softhca
