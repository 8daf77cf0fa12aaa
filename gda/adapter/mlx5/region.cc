#include "gda/adapter/mlx5/region.h"

#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"
#include "plugin/fabric/registration.h"

namespace twinpath::gda::mlx5 {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC;

RangeMr register_range(const Adapter& adapter, const RegionRequest& r) {
  RangeRequest range;
  range.address = reinterpret_cast<std::uintptr_t>(r.data);
  range.bytes = r.bytes;
  range.access = kAccess;
  range.relaxed_ordering = r.relaxed_ordering;
  if (!r.on_gpu) return register_host_range(adapter.verbs(), adapter.pd(), range);
  range.data_direct = !adapter.rail().port.port->data_direct.empty();
  range.dmabuf_fd = r.dmabuf_fd;
  range.dmabuf_offset = r.dmabuf_offset;
  range.exported = range.by_address = true;
  return register_gpu_range(adapter.verbs(), adapter.pd(), range);
}

}  // namespace

Result<Owned<ibv_mr>> register_region(const Adapter& adapter, const RegionRequest& r) {
  if (page_offset(reinterpret_cast<std::uintptr_t>(r.data)) != 0) {
    TP_WARN(
        "%s cannot register %zu bytes at %p for kernels: it does not begin where a page of %zu "
        "bytes does",
        adapter.name(), r.bytes, r.data, page_size());
    return Status::bad_argument;
  }
  const RangeMr made = register_range(adapter, r);
  if (made.mr != nullptr) {
    if (!made.refused.empty())
      TP_INFO(net, "%s: memory for kernels goes another way than the best: %s", adapter.name(),
              made.refused.c_str());
    return own(made.mr, adapter.verbs().dereg_mr);
  }
  TP_WARN("%s cannot register %zu bytes at %p for kernels: %s", adapter.name(), r.bytes, r.data,
          made.refused.c_str());
  return made.error == ENOMEM ? Status::no_memory : Status::system;
}

}  // namespace twinpath::gda::mlx5
