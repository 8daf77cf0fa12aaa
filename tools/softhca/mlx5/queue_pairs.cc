// Queue pairs of libmlx5's own kinds, made by call and not by command.
#include <infiniband/mlx5dv.h>

#include <cerrno>

#include "tools/softhca/mlx5/devices.h"
#include "tools/softhca/mlx5/recorder.h"

using namespace twinpath::softhca::mlx5;

// The target of dynamically connected transport alone: programs that offer both kinds of transport
// make one whichever they use.  libibverbs' side of it: ../dynamic_target.cc.
extern "C" ibv_qp* mlx5dv_create_qp(ibv_context* context, ibv_qp_init_attr_ex* attr,
                                    mlx5dv_qp_init_attr* own) {
  const bool target = attr->qp_type == IBV_QPT_DRIVER && own != nullptr &&
                      own->comp_mask == MLX5DV_QP_INIT_ATTR_MASK_DC &&
                      own->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT;
  if (!target) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  Record record("create_qp", context);
  record.number("dc_type", own->dc_init_attr.dc_type);
  // Without an SRQ there is nothing that receives.
  if (attr->comp_mask != IBV_QP_INIT_ATTR_PD || attr->srq == nullptr) {
    record.write(EINVAL);
    errno = EINVAL;
    return nullptr;
  }
  ibv_qp_init_attr_ex made = *attr;
  made.qp_type = IBV_QPT_RC;
  made.cap = {};
  made.cap.max_send_wr = made.cap.max_send_sge = 1;  // of no use
  ibv_qp* const qp = ibv_create_qp_ex(context, &made);
  if (qp != nullptr) {
    qp->qp_type = IBV_QPT_DRIVER;
    record.number("qpn", qp->qp_num);
  }
  record.write(qp == nullptr ? errno : 0);
  return qp;
}
