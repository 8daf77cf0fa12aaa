// Stands in for libcuda.so.1: shows FAKE_GPUS GPUs (2) that do nothing, or, with FAKE_CUDA_INIT
// set, a driver whose cuInit fails with that number.  With it coll_perf gets as far as NCCL on a
// machine without a GPU.
#include <cstdio>
#include <cstdlib>

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

}  // namespace

extern "C" int cuInit(unsigned) { return number("FAKE_CUDA_INIT", 0); }

extern "C" int cuDeviceGetCount(int* count) {
  *count = number("FAKE_GPUS", 2);
  return 0;
}

extern "C" int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

extern "C" int cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "stand-in");
  return 0;
}

extern "C" int cuDeviceGetPCIBusId(char* bus, int bytes, int device) {
  std::snprintf(bus, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device + 1);
  return 0;
}

extern "C" int cuGetErrorName(int error, const char** name) {
  *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

extern "C" int cuGetErrorString(int, const char** text) {
  *text = "no CUDA-capable device is detected";
  return 0;
}

extern "C" int cuMemAlloc_v2(unsigned long long* address, std::size_t) {
  *address = 0x100000;  // nobody looks there
  return 0;
}

extern "C" int cuMemHostAlloc(void** data, std::size_t bytes, unsigned) {
  *data = std::malloc(bytes);
  return *data != nullptr ? 0 : 2;
}

extern "C" int cuMemFreeHost(void* data) {
  std::free(data);
  return 0;
}

#define FAKE_ENTRY(name, result) \
  extern "C" int name() { return result; }

FAKE_ENTRY(cuDeviceGetAttribute, 0)
FAKE_ENTRY(cuDevicePrimaryCtxRetain, 0)
FAKE_ENTRY(cuDevicePrimaryCtxRelease_v2, 0)
FAKE_ENTRY(cuCtxSetCurrent, 0)
FAKE_ENTRY(cuCtxSynchronize, 0)
FAKE_ENTRY(cuMemFree_v2, 0)
FAKE_ENTRY(cuMemcpyHtoD_v2, 0)
FAKE_ENTRY(cuMemcpyDtoH_v2, 0)
FAKE_ENTRY(cuMemcpyHtoDAsync_v2, 0)
FAKE_ENTRY(cuMemcpyDtoHAsync_v2, 0)
FAKE_ENTRY(cuMemsetD8Async, 0)
FAKE_ENTRY(cuStreamCreate, 0)
FAKE_ENTRY(cuStreamDestroy_v2, 0)
FAKE_ENTRY(cuStreamQuery, 0)
FAKE_ENTRY(cuEventCreate, 0)
FAKE_ENTRY(cuEventDestroy_v2, 0)
FAKE_ENTRY(cuEventRecord, 0)
FAKE_ENTRY(cuEventElapsedTime, 0)
