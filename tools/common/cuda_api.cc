#include "tools/common/cuda_api.h"

#include <dlfcn.h>

namespace twinpath::tools {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Never closed: the driver does not come back from that.  RTLD_GLOBAL as CUDA's runtime does it, so
// that who asks with RTLD_NOLOAD, the plugin for one, finds it.
void* open_driver() { return dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL); }

template <class F>
bool look_up(void* library, const char* symbol, F& function) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace

CudaApi::Loaded CudaApi::load(CudaUse use, std::string& detail) {
  void* library = open_driver();
  if (library == nullptr) {
    detail = dlerror();
    return Loaded::no_library;
  }
#define TP_TOOL_CUDA_LOOK_UP(member, symbol, parameters) \
  if (!look_up(library, symbol, member)) {               \
    detail = symbol;                                     \
    return Loaded::no_function;                          \
  }
  TP_TOOL_CUDA_CALLS(TP_TOOL_CUDA_LOOK_UP)
  if (use == CudaUse::vmm) {
    TP_TOOL_CUDA_VMM_CALLS(TP_TOOL_CUDA_LOOK_UP)
  }
#undef TP_TOOL_CUDA_LOOK_UP
#define TP_TOOL_CUDA_LOOK_UP(member, symbol, parameters) (void)look_up(library, symbol, member);
  TP_TOOL_CUDA_GRAPH_CALLS(TP_TOOL_CUDA_LOOK_UP)
#undef TP_TOOL_CUDA_LOOK_UP
  return Loaded::yes;
}

std::string start_cuda() {
  void* library = open_driver();
  if (library == nullptr) return std::string(kLibrary) + " is not there";
  gpu::cuda::Result (*init)(unsigned) = nullptr;
  if (!look_up(library, "cuInit", init)) return std::string(kLibrary) + " has no cuInit";
  const gpu::cuda::Result error = init(0);
  return error == gpu::cuda::kSuccess ? std::string()
                                      : "cuInit: CUDA error " + std::to_string(error);
}

}  // namespace twinpath::tools
