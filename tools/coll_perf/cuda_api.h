#pragma once
// The CUDA driver calls this tool makes, looked up in libcuda.so.1 at run time: neither the CUDA
// toolkit nor its headers are needed to build or to start.
//
// Threads: the table is read-only after open(); contexts are per thread as CUDA defines.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/coll_perf/nccl_api.h"  // CuStream

namespace twinpath::coll {

using CuResult = int;
inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuNotReady = 600;
using CuDevicePtr = std::uint64_t;
using CuContext = struct CuContextOpaque*;
using CuEvent = struct CuEventOpaque*;

struct CudaApi {
  CuResult (*Init)(unsigned);
  CuResult (*DriverGetVersion)(int*);
  CuResult (*DeviceGetCount)(int*);
  CuResult (*DeviceGet)(int*, int);
  CuResult (*DeviceGetName)(char*, int, int);
  CuResult (*DeviceGetPCIBusId)(char*, int, int);
  CuResult (*DevicePrimaryCtxRetain)(CuContext*, int);
  CuResult (*DevicePrimaryCtxRelease)(int);
  CuResult (*CtxSetCurrent)(CuContext);
  CuResult (*MemAlloc)(CuDevicePtr*, std::size_t);
  CuResult (*MemFree)(CuDevicePtr);
  CuResult (*MemHostAlloc)(void**, std::size_t, unsigned);
  CuResult (*MemFreeHost)(void*);
  CuResult (*MemcpyHtoDAsync)(CuDevicePtr, const void*, std::size_t, CuStream);
  CuResult (*MemcpyDtoHAsync)(void*, CuDevicePtr, std::size_t, CuStream);
  CuResult (*MemsetD8Async)(CuDevicePtr, unsigned char, std::size_t, CuStream);
  CuResult (*StreamCreate)(CuStream*, unsigned);
  CuResult (*StreamDestroy)(CuStream);
  CuResult (*StreamQuery)(CuStream);
  CuResult (*EventCreate)(CuEvent*, unsigned);
  CuResult (*EventDestroy)(CuEvent);
  CuResult (*EventRecord)(CuEvent, CuStream);
  CuResult (*EventElapsedTime)(float*, CuEvent, CuEvent);
  CuResult (*GetErrorName)(CuResult, const char**);
  CuResult (*GetErrorString)(CuResult, const char**);

  // Opens the driver and initialises it; throws ToolError with the remedy.
  static CudaApi open();
  int device_count() const;
  std::string device_text(int ordinal) const;  // "NVIDIA H200 0000:3b:00.0"
  void check(CuResult result, const std::string& what) const;
  std::string describe(CuResult result) const;
};

}  // namespace twinpath::coll
