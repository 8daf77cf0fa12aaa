#pragma once
// The tools' table of CUDA driver calls, with this tool's errors.
//
// Threads: the table is read-only after open(); contexts are per thread as CUDA defines.
#include <string>

#include "tools/common/cuda_api.h"

namespace twinpath::coll {

using CuResult = gpu::cuda::Result;
using CuDevicePtr = gpu::cuda::Address;
using CuContext = gpu::cuda::Context;
using CuStream = gpu::cuda::Stream;
using CuEvent = gpu::cuda::Event;

struct CudaApi : tools::CudaApi {
  // Opens the driver and initialises it; throws ToolError with the remedy.
  static CudaApi open();
  int device_count() const;
  std::string device_text(int ordinal) const;  // "NVIDIA H200 0000:3b:00.0"
  void check(CuResult result, const std::string& what) const;
  std::string describe(CuResult result) const;
};

}  // namespace twinpath::coll
