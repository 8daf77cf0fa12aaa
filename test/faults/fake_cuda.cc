// Stands in for libcuda.so.1 on a machine whose driver is not running: every entry that exists
// fails as the real library does then (CUDA_ERROR_NO_DEVICE).
#define FAKE_ENTRY(name) \
  extern "C" int name() { return 100; }

FAKE_ENTRY(cuInit)
FAKE_ENTRY(cuDriverGetVersion)
FAKE_ENTRY(cuDeviceGetCount)
FAKE_ENTRY(cuDeviceGet)
FAKE_ENTRY(cuCtxGetCurrent)
FAKE_ENTRY(cuPointerGetAttribute)
FAKE_ENTRY(cuPointerGetAttributes)
FAKE_ENTRY(cuGetErrorName)
FAKE_ENTRY(cuGetProcAddress)
FAKE_ENTRY(cuGetProcAddress_v2)
