#include "gda/mlx5/gpu_bell.h"

#include "plugin/gpu/driver.h"

namespace twinpath::gda::mlx5 {
namespace {

namespace cuda = gpu::cuda;

constexpr unsigned kPortable = 1, kDeviceMap = 2, kIoMemory = 4;
constexpr int kInvalidValue = 1, kAlreadyRegistered = 712, kNotPermitted = 800;
constexpr std::size_t kBellBytes = 8;

}  // namespace

std::string bell_refusal(int error, const std::string& name) {
  std::string text =
      "the GPU may not ring its doorbells: the driver does not map them (" + name + ")";
  switch (error) {
    case kNotPermitted:
      return text +
             "; load the nvidia module with NVreg_RegistryDwords=\"PeerMappingOverride=1\", or run "
             "as root";
    case kAlreadyRegistered:
      return text + "; another library of this process has mapped the page";
    case kInvalidValue:
      return text + "; it takes the page for ordinary memory";
    default:
      return text;
  }
}

std::unique_ptr<GpuBell> GpuBell::map(int gpu, void* bell, bool real, std::string& why_not) {
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr || d->host_register == nullptr || d->host_unregister == nullptr ||
      d->host_device_pointer == nullptr) {
    why_not = "the CUDA driver has no cuMemHostRegister";
    return nullptr;
  }
  const cuda::ScopedContext scope(*d, gpu);
  cuda::Result r = scope.result();
  if (scope)
    r = d->host_register(bell, kBellBytes, kPortable | kDeviceMap | (real ? kIoMemory : 0));
  if (r != cuda::kSuccess) {
    why_not = bell_refusal(r, error_name(*d, r));
    return nullptr;
  }
  cuda::Address address = 0;
  r = d->host_device_pointer(&address, bell, 0);
  if (r == cuda::kSuccess) return std::unique_ptr<GpuBell>(new GpuBell(gpu, bell, address));
  (void)d->host_unregister(bell);
  why_not = bell_refusal(r, error_name(*d, r));
  return nullptr;
}

GpuBell::~GpuBell() {
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr) return;
  const cuda::ScopedContext scope(*d, gpu_);
  if (scope) (void)d->host_unregister(bell_);
}

}  // namespace twinpath::gda::mlx5
