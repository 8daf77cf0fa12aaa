// See dmabuf_export.h.
#include "gda/memory/dmabuf_export.h"

#include "plugin/gpu/driver.h"

namespace twinpath::gda {

namespace cuda = gpu::cuda;

bool exports_dmabufs() {
  const cuda::Driver* const d = cuda::driver();
  return d != nullptr && d->range_handle != nullptr;
}

int export_dmabuf(int gpu, std::uint64_t address, std::size_t bytes) {
  constexpr int kDmaBuf = 1;
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr || d->range_handle == nullptr) return -1;
  const cuda::ScopedContext scope(*d, gpu);
  if (!scope) return -1;
  int fd = -1;
  return d->range_handle(&fd, address, bytes, kDmaBuf, 0) == cuda::kSuccess ? fd : -1;
}

}  // namespace twinpath::gda
