#pragma once
// What the files of the libibverbs facade share: the verbs table of the software HCA, the link
// layer that its ports pretend to have, and the makers of extended objects.
//
// The facade *defines* libibverbs' exported functions (libibverbs.map says under which versions);
// most of them are one call through the table.  Errors are libibverbs' own: an errno value, or
// null or -1 with errno set.  Threads: as in libibverbs, any.
#include <infiniband/verbs.h>

#include <cerrno>

#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/verbs.h"

// verbs.h turns these into inline wrappers of the functions that are defined here.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace twinpath::softhca {

// What ports say they are (environment variable SOFTHCA_LINK_LAYER).  Programs address an
// InfiniBand port by its LID, without a GID, and leave sysfs alone.
enum class LinkLayer { ethernet, infiniband };

struct Facade {
  Verbs verbs;
  LinkLayer link_layer = LinkLayer::ethernet;
};

// Made by the first caller from the environment, as the plugin does.  Null after a bad setting,
// which has then been named on stderr: the process has no adapter.
const Facade* facade();

// Only where an object of the soft HCA is at hand: then there is a table.
inline const Verbs& verbs() { return facade()->verbs; }

// Null and EOPNOTSUPP, or EOPNOTSUPP: what is not modelled.
template <class T>
T* unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

// --- query.cc
int query_device(ibv_context* context, ibv_device_attr* attr);
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, std::size_t attr_size);

// --- extended_context.cc: makes `context`, just opened, an extended one.
void extend(ibv_context* context);

// --- parent_domain.cc: ibv_alloc_parent_domain of an extended context.
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr);
// `pd` itself, or the protection domain of a parent domain.  The soft HCA knows only the former.
ibv_pd* real_pd(ibv_pd* pd);

// --- extended_qp.cc
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
// Forgets the work-request builder of a queue pair that is going away.
void drop_extended(ibv_qp* qp);
// `qp` itself, or the queue pair behind it when it is the base of an ibv_qp_ex.
ibv_qp* real_qp(ibv_qp* qp);

// --- dynamic_target.cc: modify and query of what has type IBV_QPT_DRIVER.
int modify_dynamic_target(ibv_qp* qp, const ibv_qp_attr* attr, int mask);
int query_dynamic_target(const ibv_qp* qp, ibv_qp_attr* attr, ibv_qp_init_attr* init);

}  // namespace twinpath::softhca
