// Enhanced connection establishment: the device's options, or those that a peer left of them.
#include <cerrno>

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

int query_ece(ibv_qp* q, ibv_ece* ece) {
  SoftQp& qp = *soft(q);
  const std::uint32_t options = qp.soft_context->soft_device->spec.ece;
  if (options == 0) return EOPNOTSUPP;
  std::lock_guard hold(qp.lock);
  *ece = {like(q->context).ports.ece_vendor, qp.ece.value_or(options), 0};
  return 0;
}

int set_ece(ibv_qp* q, ibv_ece* ece) {
  SoftQp& qp = *soft(q);
  const std::uint32_t options = qp.soft_context->soft_device->spec.ece;
  if (options == 0) return EOPNOTSUPP;
  if (ece->vendor_id != like(q->context).ports.ece_vendor || ece->comp_mask != 0) return EINVAL;
  std::lock_guard hold(qp.lock);
  qp.ece = ece->options & options;
  return 0;
}

}  // namespace twinpath::soft
