// Extended contexts: the functions that verbs.h calls through verbs_context.  What is not set
// here answers EOPNOTSUPP, because verbs.h says so for a null pointer.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tools/softhca/facade.h"

namespace twinpath::softhca {
namespace {

// `size` tells how much of ibv_port_attr the program knows.
int query_port_sized(ibv_context* context, std::uint8_t port, ibv_port_attr* attr,
                     std::size_t size) {
  ibv_port_attr full{};
  if (int rc = query_port(context, port, &full); rc != 0) return rc;
  std::memset(static_cast<void*>(attr), 0, size);
  std::memcpy(static_cast<void*>(attr), &full, std::min(size, sizeof full));
  return 0;
}

// Only what plain ibv_create_srq could make: no tag matching, no XRC.
ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  if ((attr->comp_mask & ~kKnown) != 0 || (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 ||
      ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attr->srq_type != IBV_SRQT_BASIC)) {
    return unsupported<ibv_srq>();
  }
  ibv_srq_init_attr basic{attr->srq_context, attr->attr};
  ibv_srq* const srq = soft::create_srq(real_pd(attr->pd), &basic);
  if (srq != nullptr) attr->attr = basic.attr;
  return srq;
}

// verbs.h calls it without asking whether it is there.
int close_xrcd(ibv_xrcd*) { return EOPNOTSUPP; }

}  // namespace

void extend(ibv_context* context) {
  // The soft HCA's contexts are members of a verbs_context (soft/extended.h).
  auto* const extended = reinterpret_cast<verbs_context*>(reinterpret_cast<char*>(context) -
                                                          offsetof(verbs_context, context));
  std::memset(static_cast<void*>(extended), 0, offsetof(verbs_context, context));
  extended->sz = sizeof *extended;
  extended->query_port = query_port_sized;
  extended->query_device_ex = query_device_ex;
  extended->create_qp_ex = create_qp_ex;
  extended->create_srq_ex = create_srq_ex;
  extended->alloc_parent_domain = alloc_parent_domain;
  extended->close_xrcd = close_xrcd;
  context->abi_compat = __VERBS_ABI_IS_EXTENDED;
}

}  // namespace twinpath::softhca
