#include "tools/common/cuda_driver.h"

#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace twinpath::tools {
namespace {

// The driver's types by layout (cuda.h is not needed to build this).
using DevicePtr = std::uint64_t;
struct Location {
  int type = 1;  // device
  int id = 0;
};
struct AllocationProp {
  int type = 1;          // pinned
  int handle_types = 1;  // POSIX file descriptor
  Location location;
  void* windows = nullptr;
  unsigned char compression = 0;
  unsigned char gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
static_assert(sizeof(AllocationProp) == 32);
struct AccessDesc {
  Location location;
  int flags = 3;  // read and write
};

// X(member, symbol, arguments)
#define TP_CUDA_CALLS(X)                                                                      \
  X(init, "cuInit", (unsigned))                                                               \
  X(count, "cuDeviceGetCount", (int*))                                                        \
  X(device_get, "cuDeviceGet", (int*, int))                                                   \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                        \
  X(attribute, "cuDeviceGetAttribute", (int*, int, int))                                      \
  X(retain, "cuDevicePrimaryCtxRetain", (void**, int))                                        \
  X(set_current, "cuCtxSetCurrent", (void*))                                                  \
  X(error_string, "cuGetErrorString", (int, const char**))                                    \
  X(alloc, "cuMemAlloc_v2", (DevicePtr*, std::size_t))                                        \
  X(free, "cuMemFree_v2", (DevicePtr))                                                        \
  X(to_device, "cuMemcpyHtoD_v2", (DevicePtr, const void*, std::size_t))                      \
  X(to_host, "cuMemcpyDtoH_v2", (void*, DevicePtr, std::size_t))                              \
  X(synchronize, "cuCtxSynchronize", ())                                                      \
  X(granularity, "cuMemGetAllocationGranularity", (std::size_t*, const AllocationProp*, int)) \
  X(create, "cuMemCreate",                                                                    \
    (unsigned long long*, std::size_t, const AllocationProp*, unsigned long long))            \
  X(destroy, "cuMemRelease", (unsigned long long))                                            \
  X(reserve, "cuMemAddressReserve",                                                           \
    (DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long))                    \
  X(unreserve, "cuMemAddressFree", (DevicePtr, std::size_t))                                  \
  X(map, "cuMemMap",                                                                          \
    (DevicePtr, std::size_t, std::size_t, unsigned long long, unsigned long long))            \
  X(unmap, "cuMemUnmap", (DevicePtr, std::size_t))                                            \
  X(set_access, "cuMemSetAccess", (DevicePtr, std::size_t, const AccessDesc*, std::size_t))   \
  X(range_handle, "cuMemGetHandleForAddressRange",                                            \
    (void*, DevicePtr, std::size_t, int, unsigned long long))

struct Calls {
#define TP_MEMBER(member, symbol, args) int(*member) args = nullptr;
  TP_CUDA_CALLS(TP_MEMBER)
#undef TP_MEMBER
};

bool load(Calls& calls, std::string& why) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);  // stays: drivers do not unload
  if (library == nullptr) {
    why = "no CUDA driver: " + std::string(dlerror()) + "; leave --gpu out to use host memory";
    return false;
  }
#define TP_LOAD(member, symbol, args)                                                  \
  if (calls.member = reinterpret_cast<decltype(calls.member)>(dlsym(library, symbol)); \
      calls.member == nullptr) {                                                       \
    why = "libcuda.so.1 has no " symbol "; a driver for CUDA 11.7 or newer is needed"; \
    return false;                                                                      \
  }
  TP_CUDA_CALLS(TP_LOAD)
#undef TP_LOAD
  return true;
}

class Driver final : public CudaDriver {
 public:
  bool start(int gpu, std::string& why) {
    gpu_ = gpu;
    if (!load(calls_, why) || !ok(calls_.init(0), "cuInit", why)) return false;
    int count = 0;
    if (!ok(calls_.count(&count), "cuDeviceGetCount", why)) return false;
    if (gpu < 0 || gpu >= count) {
      why = "GPU " + std::to_string(gpu) + " does not exist; " + std::to_string(count) +
            " visible, counted from 0";
      return false;
    }
    char name[128] = {};
    if (!ok(calls_.device_get(&device_, gpu), "cuDeviceGet", why) ||
        !ok(calls_.device_name(name, sizeof name, device_), "cuDeviceGetName", why) ||
        !ok(calls_.retain(&context_, device_), "cuDevicePrimaryCtxRetain", why))
      return false;
    name_ = name;
    return set_current(why);
  }
  int gpu() const override { return gpu_; }
  std::string gpu_name() const override { return name_; }
  bool set_current(std::string& why) override {
    return ok(calls_.set_current(context_), "cuCtxSetCurrent", why);
  }

  void* allocate(std::size_t bytes, bool vmm, std::string& why) override {
    DevicePtr p = 0;
    if (!vmm) {
      if (!ok(calls_.alloc(&p, bytes), "cuMemAlloc", why)) return nullptr;
    } else if (!map_new(bytes, p, why)) {
      return nullptr;
    }
    const std::lock_guard lock(mutex_);
    mapped_[p] = vmm ? bytes : 0;
    return reinterpret_cast<void*>(p);
  }
  void release(void* data) override {
    const auto p = reinterpret_cast<DevicePtr>(data);
    std::size_t vmm_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto it = mapped_.find(p);
      if (it == mapped_.end()) return;
      vmm_bytes = it->second;
      mapped_.erase(it);
    }
    if (vmm_bytes == 0) {
      (void)calls_.free(p);
      return;
    }
    const std::size_t size = rounded(vmm_bytes);
    (void)calls_.unmap(p, size);
    (void)calls_.unreserve(p, size);
  }
  bool copy_in(void* device, const void* host, std::size_t bytes) override {
    // From pageable memory the call returns when the bytes are staged, not when they have landed.
    return calls_.to_device(reinterpret_cast<DevicePtr>(device), host, bytes) == 0 &&
           calls_.synchronize() == 0;
  }
  bool copy_out(void* host, const void* device, std::size_t bytes) override {
    return calls_.to_host(host, reinterpret_cast<DevicePtr>(device), bytes) == 0;
  }
  int export_dmabuf(void* device, std::size_t bytes, std::string& why) override {
    int fd = -1;
    constexpr int kDmabufFd = 1;
    if (!ok(calls_.range_handle(&fd, reinterpret_cast<DevicePtr>(device), (bytes + 4095) & ~4095ul,
                                kDmabufFd, 0),
            "cuMemGetHandleForAddressRange", why))
      return -1;
    return fd;
  }

 private:
  bool ok(int code, const char* call, std::string& why) {
    if (code == 0) return true;
    const char* text = nullptr;
    (void)calls_.error_string(code, &text);
    why = std::string(call) + " on GPU " + std::to_string(gpu_) + ": " +
          (text == nullptr ? "error " + std::to_string(code) : text);
    return false;
  }
  AllocationProp prop() const {
    AllocationProp p;
    p.location.id = device_;
    int rdma = 0;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    if (calls_.attribute(&rdma, 110, device_) == 0 && rdma != 0) p.gpu_direct_rdma = 1;
    return p;
  }
  std::size_t rounded(std::size_t bytes) const {
    const AllocationProp p = prop();
    std::size_t step = 0;
    if (calls_.granularity(&step, &p, 0) != 0 || step == 0) step = std::size_t{2} << 20;
    return (bytes + step - 1) / step * step;
  }
  bool map_new(std::size_t bytes, DevicePtr& p, std::string& why) {
    const AllocationProp properties = prop();
    const std::size_t size = rounded(bytes);
    unsigned long long handle = 0;
    if (!ok(calls_.create(&handle, size, &properties, 0), "cuMemCreate", why)) return false;
    AccessDesc access;
    access.location.id = device_;
    const bool mapped = ok(calls_.reserve(&p, size, 0, 0, 0), "cuMemAddressReserve", why) &&
                        ok(calls_.map(p, size, 0, handle, 0), "cuMemMap", why) &&
                        ok(calls_.set_access(p, size, &access, 1), "cuMemSetAccess", why);
    (void)calls_.destroy(handle);  // the mapping keeps the memory
    return mapped;
  }

  Calls calls_;
  int gpu_ = 0, device_ = 0;
  void* context_ = nullptr;
  std::string name_;
  std::mutex mutex_;
  std::map<DevicePtr, std::size_t> mapped_;  // VMM size, 0 for cuMemAlloc
};

}  // namespace

std::shared_ptr<CudaDriver> CudaDriver::open(int gpu, std::string& why) {
  auto driver = std::make_shared<Driver>();
  if (!driver->start(gpu, why)) return nullptr;
  return driver;
}

}  // namespace twinpath::tools
