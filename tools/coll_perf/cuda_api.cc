#include "tools/coll_perf/cuda_api.h"

#include <dlfcn.h>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

template <class F>
void look_up(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    throw ToolError(kExitMissing, strf("libcuda.so.1 has no %s: update the NVIDIA driver", name));
  }
}

}  // namespace

CudaApi CudaApi::open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw ToolError(kExitMissing,
                    "libcuda.so.1 not found: the NVIDIA driver is not installed or not passed "
                    "into this container (a CUDA toolkit alone is not enough); without GPUs use "
                    "--cpu 4");
  }
  CudaApi api{};
  look_up(library, "cuInit", api.Init);
  look_up(library, "cuDriverGetVersion", api.DriverGetVersion);
  look_up(library, "cuDeviceGetCount", api.DeviceGetCount);
  look_up(library, "cuDeviceGet", api.DeviceGet);
  look_up(library, "cuDeviceGetName", api.DeviceGetName);
  look_up(library, "cuDeviceGetPCIBusId", api.DeviceGetPCIBusId);
  look_up(library, "cuDevicePrimaryCtxRetain", api.DevicePrimaryCtxRetain);
  look_up(library, "cuDevicePrimaryCtxRelease_v2", api.DevicePrimaryCtxRelease);
  look_up(library, "cuCtxSetCurrent", api.CtxSetCurrent);
  look_up(library, "cuMemAlloc_v2", api.MemAlloc);
  look_up(library, "cuMemFree_v2", api.MemFree);
  look_up(library, "cuMemHostAlloc", api.MemHostAlloc);
  look_up(library, "cuMemFreeHost", api.MemFreeHost);
  look_up(library, "cuMemcpyHtoDAsync_v2", api.MemcpyHtoDAsync);
  look_up(library, "cuMemcpyDtoHAsync_v2", api.MemcpyDtoHAsync);
  look_up(library, "cuMemsetD8Async", api.MemsetD8Async);
  look_up(library, "cuStreamCreate", api.StreamCreate);
  look_up(library, "cuStreamDestroy_v2", api.StreamDestroy);
  look_up(library, "cuStreamQuery", api.StreamQuery);
  look_up(library, "cuEventCreate", api.EventCreate);
  look_up(library, "cuEventDestroy_v2", api.EventDestroy);
  look_up(library, "cuEventRecord", api.EventRecord);
  look_up(library, "cuEventElapsedTime", api.EventElapsedTime);
  look_up(library, "cuGetErrorName", api.GetErrorName);
  look_up(library, "cuGetErrorString", api.GetErrorString);
  const CuResult result = api.Init(0);
  if (result != kCuSuccess) {
    throw ToolError(kExitMissing,
                    "the NVIDIA driver does not start: " + api.describe(result) +
                        "; check nvidia-smi and that the GPUs are passed into this container; "
                        "without GPUs use --cpu 4");
  }
  return api;
}

std::string CudaApi::describe(CuResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != kCuSuccess || name == nullptr) name = "unknown";
  if (GetErrorString(result, &text) != kCuSuccess || text == nullptr) text = "no text";
  return strf("CUDA error %d (%s, %s)", result, name, text);
}

void CudaApi::check(CuResult result, const std::string& what) const {
  if (result != kCuSuccess) throw ToolError(kExitFailed, what + ": " + describe(result));
}

int CudaApi::device_count() const {
  int count = 0;
  check(DeviceGetCount(&count), "counting GPUs");
  return count;
}

std::string CudaApi::device_text(int ordinal) const {
  int device = 0;
  char name[96] = "?";
  char bus[32] = "?";
  check(DeviceGet(&device, ordinal), strf("GPU %d", ordinal));
  check(DeviceGetName(name, sizeof name, device), strf("name of GPU %d", ordinal));
  check(DeviceGetPCIBusId(bus, sizeof bus, device), strf("PCI address of GPU %d", ordinal));
  return std::string(name) + " " + bus;
}

}  // namespace twinpath::coll
