#include "tools/coll_perf/cuda_api.h"

#include "tools/coll_perf/error.h"

namespace twinpath::coll {

CudaApi CudaApi::open() {
  CudaApi api;
  std::string detail;
  switch (api.load(tools::CudaUse::plain, detail)) {
    case Loaded::yes:
      break;
    case Loaded::no_library:
      throw ToolError(kExitMissing,
                      "libcuda.so.1 not found: the NVIDIA driver is not installed or not passed "
                      "into this container (a CUDA toolkit alone is not enough); without GPUs use "
                      "--cpu 4");
    case Loaded::no_function:
      throw ToolError(kExitMissing, "libcuda.so.1 has no " + detail + ": update the NVIDIA driver");
  }
  if (const CuResult result = api.init(0); result != gpu::cuda::kSuccess) {
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
  if (get_error_name(result, &name) != gpu::cuda::kSuccess || name == nullptr) name = "unknown";
  if (get_error_string(result, &text) != gpu::cuda::kSuccess || text == nullptr) text = "no text";
  return strf("CUDA error %d (%s, %s)", result, name, text);
}

void CudaApi::check(CuResult result, const std::string& what) const {
  if (result != gpu::cuda::kSuccess) throw ToolError(kExitFailed, what + ": " + describe(result));
}

int CudaApi::device_count() const {
  int present = 0;
  check(count(&present), "counting GPUs");
  return present;
}

std::string CudaApi::device_text(int ordinal) const {
  int device = 0;
  char name[96] = "?";
  char bus[32] = "?";
  check(device_get(&device, ordinal), strf("GPU %d", ordinal));
  check(device_name(name, sizeof name, device), strf("name of GPU %d", ordinal));
  check(device_bus_id(bus, sizeof bus, device), strf("PCI address of GPU %d", ordinal));
  return std::string(name) + " " + bus;
}

}  // namespace twinpath::coll
