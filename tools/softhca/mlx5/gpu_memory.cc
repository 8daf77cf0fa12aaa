#include "tools/softhca/mlx5/gpu_memory.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

namespace twinpath::softhca::mlx5 {
namespace {

// The driver's calls that are needed, with its own names; results are its error numbers.
struct Driver {
  using Address = unsigned long long;
  int (*cuPointerGetAttribute)(void*, int, Address) = nullptr;
  int (*cuDeviceGet)(int*, int) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(void**, int) = nullptr;
  int (*cuCtxPushCurrent_v2)(void*) = nullptr;
  int (*cuCtxPopCurrent_v2)(void**) = nullptr;
  int (*cuStreamCreate)(void**, unsigned) = nullptr;
  int (*cuStreamSynchronize)(void*) = nullptr;
  int (*cuMemHostAlloc)(void**, std::size_t, unsigned) = nullptr;
  int (*cuMemcpyDtoHAsync_v2)(void*, Address, std::size_t, void*) = nullptr;
  int (*cuMemcpyHtoDAsync_v2)(Address, const void*, std::size_t, void*) = nullptr;

  bool load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return false;
    bool all = true;
    const auto find = [&](auto& call, const char* name) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
      all = all && call != nullptr;
    };
#define TP_FIND(name) find(name, #name)
    TP_FIND(cuPointerGetAttribute);
    TP_FIND(cuDeviceGet);
    TP_FIND(cuDevicePrimaryCtxRetain);
    TP_FIND(cuCtxPushCurrent_v2);
    TP_FIND(cuCtxPopCurrent_v2);
    TP_FIND(cuStreamCreate);
    TP_FIND(cuStreamSynchronize);
    TP_FIND(cuMemHostAlloc);
    TP_FIND(cuMemcpyDtoHAsync_v2);
    TP_FIND(cuMemcpyHtoDAsync_v2);
#undef TP_FIND
    return all;
  }
};

constexpr int kMemoryType = 2, kOrdinal = 9;  // pointer attributes
constexpr unsigned kDeviceMemory = 2;
constexpr unsigned kNonBlocking = 1;  // a stream that waits for no other
constexpr std::size_t kStagingBytes = 4096;

struct Gpu {
  void* context = nullptr;
  void* stream = nullptr;
  void* staging = nullptr;  // pinned: copies from and to it wait for nobody
};

// Global because the model's calls have no argument to carry it; control of a test double of
// hardware, never destroyed because the driver may be gone before us.
class Copies {
 public:
  bool copy(std::uint64_t address, void* to, const void* from, std::size_t bytes,
            std::size_t after) {
    std::lock_guard hold(lock_);
    if (!loaded_ && !(loaded_ = driver_.load())) return false;
    Gpu* const gpu = gpu_of(address);
    if (gpu == nullptr || bytes > kStagingBytes || after > bytes) return false;
    if (driver_.cuCtxPushCurrent_v2(gpu->context) != 0) return false;
    int result = 0;
    if (to != nullptr) {
      result = driver_.cuMemcpyDtoHAsync_v2(gpu->staging, address, bytes, gpu->stream);
    } else {
      std::memcpy(gpu->staging, from, bytes);
      const std::size_t first = bytes - after;
      auto* const staging = static_cast<char*>(gpu->staging);
      if (first != 0) result = driver_.cuMemcpyHtoDAsync_v2(address, staging, first, gpu->stream);
      if (after != 0 && result == 0) {
        result = driver_.cuMemcpyHtoDAsync_v2(address + first, staging + first, after, gpu->stream);
      }
    }
    // Also after an error: the staging must be nobody's when it is used again.
    const int done = driver_.cuStreamSynchronize(gpu->stream);
    if (to != nullptr && result == 0 && done == 0) std::memcpy(to, gpu->staging, bytes);
    void* popped = nullptr;
    (void)driver_.cuCtxPopCurrent_v2(&popped);
    if (result == 0 && done == 0) return true;
    if (!said_)
      std::fprintf(stderr, "soft HCA: CUDA error %d at a queue in GPU memory\n", result + done);
    said_ = true;
    return false;
  }

 private:
  Gpu* gpu_of(std::uint64_t address) {
    unsigned type = 0;
    int ordinal = -1;
    if (driver_.cuPointerGetAttribute(&type, kMemoryType, address) != 0 || type != kDeviceMemory ||
        driver_.cuPointerGetAttribute(&ordinal, kOrdinal, address) != 0)
      return nullptr;
    Gpu& gpu = gpus_[ordinal];
    if (gpu.staging != nullptr) return &gpu;
    int device = 0;
    // The primary context: the program's, unless it makes its own, which is not served.
    if (driver_.cuDeviceGet(&device, ordinal) != 0 ||
        driver_.cuDevicePrimaryCtxRetain(&gpu.context, device) != 0 ||
        driver_.cuCtxPushCurrent_v2(gpu.context) != 0)
      return nullptr;
    constexpr unsigned kPortable = 1;
    const bool made = driver_.cuStreamCreate(&gpu.stream, kNonBlocking) == 0 &&
                      driver_.cuMemHostAlloc(&gpu.staging, kStagingBytes, kPortable) == 0;
    void* popped = nullptr;
    (void)driver_.cuCtxPopCurrent_v2(&popped);
    return made ? &gpu : nullptr;
  }

  std::mutex lock_;
  Driver driver_;
  std::map<int, Gpu> gpus_;
  bool loaded_ = false, said_ = false;
};

Copies& copies() {
  static auto* const all = new Copies;
  return *all;
}

}  // namespace

bool read_gpu_memory(std::uint64_t address, void* to, std::size_t bytes) {
  return copies().copy(address, to, nullptr, bytes, 0);
}

bool write_gpu_memory(std::uint64_t address, const void* from, std::size_t bytes,
                      std::size_t after) {
  return copies().copy(address, nullptr, from, bytes, after);
}

}  // namespace twinpath::softhca::mlx5
