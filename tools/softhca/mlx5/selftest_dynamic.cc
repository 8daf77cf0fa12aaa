// See selftest_traffic.h.
#include <infiniband/mlx5dv.h>

#include <cerrno>

#include "tools/softhca/mlx5/selftest_library.h"
#include "tools/softhca/mlx5/selftest_traffic.h"

namespace twinpath::softhca {

std::string dynamic_target(Library& lib, ibv_context* context) {
  ibv_pd* const pd = ibv_alloc_pd(context);
  ibv_cq* const cq = ibv_create_cq(context, 8, nullptr, nullptr, 0);
  ibv_srq_init_attr receives{};
  receives.attr.max_wr = receives.attr.max_sge = 1;
  ibv_srq* const srq = ibv_create_srq(pd, &receives);
  TRY(pd != nullptr && cq != nullptr && srq != nullptr);
  ibv_qp_init_attr_ex attr{};
  attr.qp_type = IBV_QPT_DRIVER;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  attr.pd = pd;
  attr.send_cq = attr.recv_cq = cq;
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 1024;
  mlx5dv_qp_init_attr own{};
  own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
  own.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
  TRY(lib.create_qp(context, &attr, &own) == nullptr && errno == EOPNOTSUPP);
  TRY(lib.create_qp(context, &attr, nullptr) == nullptr && errno == EOPNOTSUPP);
  own.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
  TRY(lib.create_qp(context, &attr, &own) == nullptr && errno == EINVAL);  // no SRQ
  attr.srq = srq;
  ibv_qp* const qp = lib.create_qp(context, &attr, &own);
  TRY(qp != nullptr && qp->qp_num != 0 && qp->qp_type == IBV_QPT_DRIVER);
  ibv_qp_attr to{}, is{};
  ibv_qp_init_attr init{};
  to.port_num = to.ah_attr.port_num = 1;
  to.path_mtu = IBV_MTU_1024;
  const auto change = [&](ibv_qp_state state, int mask) {
    to.qp_state = state;
    return ibv_modify_qp(qp, &to, mask | IBV_QP_STATE);
  };
  constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  constexpr int kReady = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER;
  TRY(change(IBV_QPS_RTR, kReady) == EINVAL && change(IBV_QPS_INIT, 0) == EINVAL);
  TRY(change(IBV_QPS_INIT, kInit) == 0);
  TRY(change(IBV_QPS_RTR, kReady & ~IBV_QP_AV) == EINVAL && change(IBV_QPS_RTR, kReady) == 0);
  TRY(change(IBV_QPS_RTS, 0) == EINVAL);
  TRY(ibv_query_qp(qp, &is, IBV_QP_STATE, &init) == 0 && is.qp_state == IBV_QPS_RTR);
  TRY(init.srq == srq && init.qp_type == IBV_QPT_DRIVER);
  TRY(ibv_destroy_srq(srq) == EBUSY);
  TRY(change(IBV_QPS_ERR, 0) == 0 && change(IBV_QPS_RESET, 0) == 0);
  TRY(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
  TRY(ibv_dealloc_pd(pd) == 0);
  return {};
}

}  // namespace twinpath::softhca
