#include "gda/mlx5/region.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "proxy/queues/completion_text.h"

namespace twinpath::gda::mlx5 {

Result<Owned<ibv_mr>> register_region(const Adapter& adapter, const RegionRequest& r) {
  const Verbs& verbs = adapter.verbs();
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC;
  if (r.relaxed_ordering) access |= IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* mr = nullptr;
  int dmabuf_error = 0;
  if (r.dmabuf_fd >= 0 && verbs.reg_data_direct != nullptr &&
      !adapter.rail().port.port->data_direct.empty()) {
    errno = 0;
    mr = verbs.reg_data_direct(adapter.pd(), r.dmabuf_offset, r.bytes, 0, r.dmabuf_fd,
                               static_cast<int>(access), kDataDirect);
    if (mr == nullptr)
      TP_INFO(net,
              "the data-direct function of %s refuses memory for kernels: %s (errno %d); its "
              "own function moves it",
              adapter.name(), std::strerror(errno), errno);
  }
  if (mr == nullptr && r.dmabuf_fd >= 0 && verbs.reg_dmabuf_mr != nullptr) {
    errno = 0;
    mr = verbs.reg_dmabuf_mr(adapter.pd(), r.dmabuf_offset, r.bytes, 0, r.dmabuf_fd,
                             static_cast<int>(access));
    dmabuf_error = errno;
  }
  if (mr == nullptr) {
    errno = 0;
    mr = verbs.reg_mr_iova2(adapter.pd(), r.data, r.bytes, 0, access);
  }
  if (mr != nullptr) return own(mr, verbs.dereg_mr);
  const int error = errno;
  const std::string also = dmabuf_error == 0
                               ? std::string()
                               : std::string(", and by dma-buf: ") + std::strerror(dmabuf_error);
  TP_WARN("%s cannot register %zu bytes at %p for kernels: %s (errno %d)%s%s", adapter.name(),
          r.bytes, r.data, std::strerror(error), error, also.c_str(), object_remedy(error));
  return error == ENOMEM ? Status::no_memory : Status::system;
}

}  // namespace twinpath::gda::mlx5
