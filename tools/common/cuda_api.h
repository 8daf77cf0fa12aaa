#pragma once
// The CUDA driver's calls that the tools make, looked up in libcuda.so.1 at run time: a tool builds
// and starts where neither CUDA nor its headers are.  Types are the plugin's (by layout).
//
// Not the plugin's table: that one takes what the program has loaded, at the versions of CUDA 11.7,
// while a tool loads the driver itself, and but for CudaUse::vmm an old one will do.
//
// Threads: read-only once it is loaded; contexts are per thread, as CUDA defines.
#include <cstddef>
#include <string>

#include "plugin/gpu/driver.h"

namespace twinpath::tools {

// X(member, symbol, parameters)
// clang-format off
#define TP_TOOL_CUDA_CALLS(X)                                                                    \
  X(init, "cuInit", (unsigned))                                                                  \
  X(count, "cuDeviceGetCount", (int*))                                                           \
  X(device_get, "cuDeviceGet", (int*, int))                                                      \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                           \
  X(device_bus_id, "cuDeviceGetPCIBusId", (char*, int, int))                                     \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                                  \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (gpu::cuda::Context*, int))                      \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int))                                      \
  X(ctx_set, "cuCtxSetCurrent", (gpu::cuda::Context))                                            \
  X(ctx_synchronize, "cuCtxSynchronize", ())                                                     \
  X(mem_alloc, "cuMemAlloc_v2", (gpu::cuda::Address*, std::size_t))                              \
  X(mem_free, "cuMemFree_v2", (gpu::cuda::Address))                                              \
  X(host_alloc, "cuMemHostAlloc", (void**, std::size_t, unsigned))                               \
  X(host_free, "cuMemFreeHost", (void*))                                                         \
  X(copy_in, "cuMemcpyHtoD_v2", (gpu::cuda::Address, const void*, std::size_t))                  \
  X(copy_out, "cuMemcpyDtoH_v2", (void*, gpu::cuda::Address, std::size_t))                       \
  X(copy_in_async, "cuMemcpyHtoDAsync_v2",                                                       \
    (gpu::cuda::Address, const void*, std::size_t, gpu::cuda::Stream))                           \
  X(copy_out_async, "cuMemcpyDtoHAsync_v2",                                                      \
    (void*, gpu::cuda::Address, std::size_t, gpu::cuda::Stream))                                 \
  X(set_bytes_async, "cuMemsetD8Async",                                                          \
    (gpu::cuda::Address, unsigned char, std::size_t, gpu::cuda::Stream))                         \
  X(stream_create, "cuStreamCreate", (gpu::cuda::Stream*, unsigned))                             \
  X(stream_destroy, "cuStreamDestroy_v2", (gpu::cuda::Stream))                                   \
  X(stream_query, "cuStreamQuery", (gpu::cuda::Stream))                                          \
  X(event_create, "cuEventCreate", (gpu::cuda::Event*, unsigned))                                \
  X(event_destroy, "cuEventDestroy_v2", (gpu::cuda::Event))                                      \
  X(event_record, "cuEventRecord", (gpu::cuda::Event, gpu::cuda::Stream))                        \
  X(event_elapsed, "cuEventElapsedTime", (float*, gpu::cuda::Event, gpu::cuda::Event))           \
  X(get_error_name, "cuGetErrorName", (gpu::cuda::Result, const char**))                         \
  X(get_error_string, "cuGetErrorString", (gpu::cuda::Result, const char**))
// Memory as NCCL makes it; null without CudaUse::vmm.
#define TP_TOOL_CUDA_VMM_CALLS(X)                                                                \
  X(granularity, "cuMemGetAllocationGranularity",                                                \
    (std::size_t*, const gpu::cuda::AllocationProperties*, int))                                 \
  X(handle_create, "cuMemCreate",                                                                \
    (gpu::cuda::Handle*, std::size_t, const gpu::cuda::AllocationProperties*,                    \
     unsigned long long))                                                                        \
  X(handle_release, "cuMemRelease", (gpu::cuda::Handle))                                         \
  X(address_reserve, "cuMemAddressReserve",                                                      \
    (gpu::cuda::Address*, std::size_t, std::size_t, gpu::cuda::Address, unsigned long long))     \
  X(address_free, "cuMemAddressFree", (gpu::cuda::Address, std::size_t))                         \
  X(map, "cuMemMap",                                                                             \
    (gpu::cuda::Address, std::size_t, std::size_t, gpu::cuda::Handle, unsigned long long))       \
  X(unmap, "cuMemUnmap", (gpu::cuda::Address, std::size_t))                                      \
  X(set_access, "cuMemSetAccess",                                                                \
    (gpu::cuda::Address, std::size_t, const gpu::cuda::AccessDescription*, std::size_t))         \
  X(range_handle, "cuMemGetHandleForAddressRange",                                               \
    (void*, gpu::cuda::Address, std::size_t, int, unsigned long long))
// Null where the driver lacks them: has_graphs().
#define TP_TOOL_CUDA_GRAPH_CALLS(X)                                                              \
  X(capture_begin, "cuStreamBeginCapture_v2", (gpu::cuda::Stream, int))                          \
  X(capture_end, "cuStreamEndCapture", (gpu::cuda::Stream, gpu::cuda::Graph*))                   \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
    (gpu::cuda::GraphExec*, gpu::cuda::Graph, unsigned long long))                               \
  X(graph_exec_destroy, "cuGraphExecDestroy", (gpu::cuda::GraphExec))                            \
  X(graph_destroy, "cuGraphDestroy", (gpu::cuda::Graph))                                         \
  X(graph_launch, "cuGraphLaunch", (gpu::cuda::GraphExec, gpu::cuda::Stream))
// clang-format on

enum class CudaUse { plain, vmm };  // vmm: a driver of CUDA 11.7 or newer

struct CudaApi {
#define TP_TOOL_CUDA_MEMBER(member, symbol, parameters) \
  gpu::cuda::Result(*member) parameters = nullptr;
  TP_TOOL_CUDA_CALLS(TP_TOOL_CUDA_MEMBER)
  TP_TOOL_CUDA_VMM_CALLS(TP_TOOL_CUDA_MEMBER)
  TP_TOOL_CUDA_GRAPH_CALLS(TP_TOOL_CUDA_MEMBER)
#undef TP_TOOL_CUDA_MEMBER
#define TP_TOOL_CUDA_THERE(member, symbol, parameters) &&member != nullptr
  bool has_graphs() const { return true TP_TOOL_CUDA_GRAPH_CALLS(TP_TOOL_CUDA_THERE); }
#undef TP_TOOL_CUDA_THERE

  enum class Loaded { yes, no_library, no_function };
  // Opens the driver, for good, and fills the table; cuInit is the caller's.  `detail` is the
  // loader's complaint, or the symbol that the driver lacks.
  Loaded load(CudaUse use, std::string& detail);
};

// Starts the CUDA driver, so that the plugin's parts and topology/ find it.  Empty, or why not.  No
// context is made.
std::string start_cuda();

}  // namespace twinpath::tools
