// CUDA memory to try registrations with.  The driver is used only where the program has loaded it.
#include <dlfcn.h>

#include "plugin/base/owned.h"
#include "plugin/gpu/driver.h"
#include "topology/probe/probe.h"

namespace twinpath {
namespace {

namespace cuda = gpu::cuda;

// A block of its own in CUDA's allocator: an export wants whole pages.
constexpr std::size_t kProbeBytes = std::size_t{2} << 20;
constexpr int kHandleDmaBuf = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

// What the soft HCA's table of the driver does not have.  These symbols have kept their meaning
// since CUDA 3.2, and 11.7 for the export.
struct Calls {
  cuda::Result (*alloc)(cuda::Address*, std::size_t) = nullptr;
  cuda::Result (*free)(cuda::Address) = nullptr;
  cuda::Result (*export_range)(void*, cuda::Address, std::size_t, int,
                               unsigned long long) = nullptr;
  cuda::Result (*by_bus_id)(cuda::Device*, const char*) = nullptr;
};

template <class F>
void find(void* library, const char* symbol, F& out) {
  out = reinterpret_cast<F>(dlsym(library, symbol));
}

Calls load_calls() {
  Calls c;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return c;
  find(library, "cuMemAlloc_v2", c.alloc);
  find(library, "cuMemFree_v2", c.free);
  find(library, "cuMemGetHandleForAddressRange", c.export_range);
  find(library, "cuDeviceGetByPCIBusId", c.by_bus_id);
  (void)dlclose(library);  // the program's own reference keeps it
  return c;
}

Probe with_cuda_memory(int gpu, bool dmabuf, const UseGpuMemory& use) {
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr) return not_tried("the program has not loaded the CUDA driver");
  if (gpu < 0 || gpu >= cuda::gpu_count(*d)) return not_tried("CUDA shows no such GPU");
  if (!cuda::in_use(*d, gpu)) return not_tried("the program does not use this GPU");
  const Calls calls = load_calls();
  if (calls.alloc == nullptr || calls.free == nullptr)
    return not_tried("the CUDA driver has no cuMemAlloc");
  if (dmabuf && calls.export_range == nullptr)
    return {Answer::no, 0, Reason::gdr_none,
            "the CUDA driver has no cuMemGetHandleForAddressRange (11.7 or later has)"};
  const cuda::ScopedContext context(*d, gpu);
  if (!context) return not_tried("no CUDA context: " + cuda::error_name(*d, context.result()));
  cuda::Address address = 0;
  if (const auto r = calls.alloc(&address, kProbeBytes); r != cuda::kSuccess)
    return not_tried("cuMemAlloc: " + cuda::error_name(*d, r));
  Probe answer;
  int fd = -1;
  const auto exported =
      dmabuf ? calls.export_range(&fd, address, kProbeBytes, kHandleDmaBuf, 0) : cuda::kSuccess;
  if (exported == cuda::kSuccess) {
    const UniqueFd owned(fd);
    answer = use(address, kProbeBytes, fd);
  } else {
    answer = {Answer::no, exported, Reason::gdr_none,
              "cuMemGetHandleForAddressRange: " + cuda::error_name(*d, exported)};
  }
  (void)calls.free(address);
  return answer;
}

}  // namespace

WithGpuMemory cuda_memory() { return with_cuda_memory; }

std::optional<int> cuda_ordinal(const std::string& bus_id) {
  if (cuda::driver() == nullptr) return std::nullopt;
  const Calls calls = load_calls();
  cuda::Device device = 0;
  if (calls.by_bus_id == nullptr || calls.by_bus_id(&device, bus_id.c_str()) != cuda::kSuccess)
    return std::nullopt;
  return device;
}

}  // namespace twinpath
