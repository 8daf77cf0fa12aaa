#include "gda/adapter/mlx5/gpu_doorbell.h"

namespace twinpath::gda::mlx5 {
namespace {

namespace cuda = gpu::cuda;

constexpr int kInvalidValue = 1, kNotPermitted = 800;

}  // namespace

std::string doorbell_refusal(int error, const std::string& name) {
  std::string text =
      "the GPU may not ring its doorbells: the driver does not map them (" + name + ")";
  switch (error) {
    case kNotPermitted:
      return text +
             "; load the nvidia module with NVreg_RegistryDwords=\"PeerMappingOverride=1\", or run "
             "as root";
    case kInvalidValue:
      return text + "; it takes the page for ordinary memory";
    default:
      return text;
  }
}

std::unique_ptr<GpuDoorbell> GpuDoorbell::map(int gpu, void* bell, bool real,
                                              std::string& why_not) {
  const cuda::Driver* const d = cuda::driver();
  if (d == nullptr || d->host_register == nullptr || d->host_unregister == nullptr ||
      d->host_device_pointer == nullptr) {
    why_not = "the CUDA driver has no cuMemHostRegister";
    return nullptr;
  }
  cuda::Result refused = cuda::kSuccess;
  auto page = gpu::MappedPage::map(*d, gpu, bell, real, refused);
  if (page != nullptr) return std::unique_ptr<GpuDoorbell>(new GpuDoorbell(std::move(page)));
  why_not = doorbell_refusal(refused, error_name(*d, refused));
  return nullptr;
}

}  // namespace twinpath::gda::mlx5
