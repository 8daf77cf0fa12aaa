#include "topology/probe/probe_gpus.h"

#include <dlfcn.h>

#include "plugin/gpu/driver.h"
#include "topology/model/place.h"

namespace twinpath {
namespace {

namespace cuda = gpu::cuda;

// Numbers of cuda.h, which do not change between versions.
constexpr int kMajor = 75;
constexpr int kMinor = 76;
constexpr int kUsesHostPageTables = 100;  // only where CPU and GPU are coherent
constexpr int kGdrSupported = 116;
constexpr int kWritesOrdering = 118;
constexpr int kDmaBufSupported = 124;
constexpr int kHostNumaId = 134;
constexpr int kOrderedToOwner = 100;

struct DeviceCalls {
  cuda::Result (*attribute)(int*, int, cuda::Device) = nullptr;
  cuda::Result (*bus_id)(char*, int, cuda::Device) = nullptr;
  cuda::Result (*name)(char*, int, cuda::Device) = nullptr;
  cuda::Result (*current)(cuda::Device*) = nullptr;
};

template <class F>
void find_symbol(void* library, const char* symbol, F& out) {
  out = reinterpret_cast<F>(dlsym(library, symbol));
}

std::optional<DeviceCalls> load_device_calls() {
  if (!cuda::library_loaded()) return std::nullopt;  // cheaper to ask, for each connection does
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::nullopt;
  DeviceCalls c;
  find_symbol(library, "cuDeviceGetAttribute", c.attribute);
  find_symbol(library, "cuDeviceGetPCIBusId", c.bus_id);
  find_symbol(library, "cuDeviceGetName", c.name);
  find_symbol(library, "cuCtxGetDevice", c.current);
  (void)dlclose(library);  // the program's own reference keeps it
  if (c.attribute == nullptr || c.bus_id == nullptr || c.name == nullptr || c.current == nullptr)
    return std::nullopt;
  return c;
}

// nullopt for an attribute that the driver does not know.
std::optional<int> attribute(const DeviceCalls& c, int which, cuda::Device gpu) {
  int value = 0;
  if (c.attribute(&value, which, gpu) != cuda::kSuccess) return std::nullopt;
  return value;
}

std::optional<bool> flag(const DeviceCalls& c, int which, cuda::Device gpu) {
  const auto value = attribute(c, which, gpu);
  return value ? std::optional(*value != 0) : std::nullopt;
}

}  // namespace

std::vector<CudaGpu> cuda_gpus() {
  std::vector<CudaGpu> out;
  const cuda::Driver* d = cuda::driver();
  const auto calls = load_device_calls();
  if (d == nullptr || !calls) return out;
  for (int i = 0; i < cuda::gpu_count(*d); ++i) {
    char text[128] = {};
    if (calls->bus_id(text, sizeof text, i) != cuda::kSuccess) continue;
    const auto bus = parse_bus_id(text);
    if (!bus) continue;
    CudaGpu g;
    g.ordinal = i;
    g.bus = *bus;
    if (calls->name(text, sizeof text, i) == cuda::kSuccess) g.name = text;
    g.compute_capability =
        attribute(*calls, kMajor, i).value_or(0) * 10 + attribute(*calls, kMinor, i).value_or(0);
    g.gdr = flag(*calls, kGdrSupported, i);
    g.dmabuf = flag(*calls, kDmaBufSupported, i);
    g.ordered = attribute(*calls, kWritesOrdering, i).value_or(0) >= kOrderedToOwner;
    // Every GPU has a nearest node; only a coherent one has a link of its own to it.
    const auto numa = attribute(*calls, kHostNumaId, i);
    if (flag(*calls, kUsesHostPageTables, i).value_or(false) && numa && *numa >= 0)
      g.host_numa = numa;
    out.push_back(std::move(g));
  }
  return out;
}

std::optional<int> current_cuda_gpu() {
  const auto calls = load_device_calls();
  cuda::Device gpu = 0;
  if (!calls || calls->current(&gpu) != cuda::kSuccess) return std::nullopt;
  return gpu;
}

void enter_cuda_gpus(Machine& machine, const std::vector<CudaGpu>& gpus) {
  for (const CudaGpu& g : gpus)
    set_cuda_facts(machine, g.bus, {g.ordinal, g.name, g.compute_capability, g.gdr, g.host_numa});
}

}  // namespace twinpath
