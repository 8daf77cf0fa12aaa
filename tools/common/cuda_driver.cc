#include "tools/common/cuda_driver.h"

#include <map>
#include <mutex>

#include "tools/common/cuda_api.h"

namespace twinpath::tools {
namespace {

using gpu::cuda::AccessDescription;
using gpu::cuda::Address;
using gpu::cuda::AllocationProperties;

class Driver final : public CudaDriver {
 public:
  bool start(int gpu, std::string& why) {
    gpu_ = gpu;
    if (!load(why) || !ok(calls_.init(0), "cuInit", why)) return false;
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
        !ok(calls_.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain", why))
      return false;
    name_ = name;
    return set_current(why);
  }
  int gpu() const override { return gpu_; }
  std::string gpu_name() const override { return name_; }
  bool set_current(std::string& why) override {
    return ok(calls_.ctx_set(context_), "cuCtxSetCurrent", why);
  }

  void* allocate(std::size_t bytes, bool vmm, std::string& why) override {
    Address p = 0;
    if (!vmm) {
      if (!ok(calls_.mem_alloc(&p, bytes), "cuMemAlloc", why)) return nullptr;
    } else if (!map_new(bytes, p, why)) {
      return nullptr;
    }
    const std::lock_guard lock(mutex_);
    mapped_[p] = vmm ? bytes : 0;
    return reinterpret_cast<void*>(p);
  }
  void release(void* data) override {
    const auto p = reinterpret_cast<Address>(data);
    std::size_t vmm_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto it = mapped_.find(p);
      if (it == mapped_.end()) return;
      vmm_bytes = it->second;
      mapped_.erase(it);
    }
    if (vmm_bytes == 0) {
      (void)calls_.mem_free(p);
      return;
    }
    const std::size_t size = rounded(vmm_bytes);
    (void)calls_.unmap(p, size);
    (void)calls_.address_free(p, size);
  }
  bool copy_in(void* device, const void* host, std::size_t bytes) override {
    // From pageable memory the call returns when the bytes are staged, not when they have landed.
    return calls_.copy_in(reinterpret_cast<Address>(device), host, bytes) == 0 &&
           calls_.ctx_synchronize() == 0;
  }
  bool copy_out(void* host, const void* device, std::size_t bytes) override {
    return calls_.copy_out(host, reinterpret_cast<Address>(device), bytes) == 0;
  }
  int export_dmabuf(void* device, std::size_t bytes, std::string& why) override {
    int fd = -1;
    constexpr int kDmabufFd = 1;
    if (!ok(calls_.range_handle(&fd, reinterpret_cast<Address>(device), (bytes + 4095) & ~4095ul,
                                kDmabufFd, 0),
            "cuMemGetHandleForAddressRange", why))
      return -1;
    return fd;
  }

 private:
  bool load(std::string& why) {
    std::string detail;
    switch (calls_.load(CudaUse::vmm, detail)) {
      case CudaApi::Loaded::yes:
        return true;
      case CudaApi::Loaded::no_library:
        why = "no CUDA driver: " + detail + "; leave --gpu out to use host memory";
        return false;
      case CudaApi::Loaded::no_function:
        break;
    }
    why = "libcuda.so.1 has no " + detail + "; a driver for CUDA 11.7 or newer is needed";
    return false;
  }
  bool ok(int code, const char* call, std::string& why) {
    if (code == 0) return true;
    const char* text = nullptr;
    (void)calls_.get_error_string(code, &text);
    why = std::string(call) + " on GPU " + std::to_string(gpu_) + ": " +
          (text == nullptr ? "error " + std::to_string(code) : text);
    return false;
  }
  AllocationProperties prop() const {
    AllocationProperties p;
    p.type = gpu::cuda::kAllocationPinned;
    p.handle_types = gpu::cuda::kHandlePosixFd;
    p.location = {gpu::cuda::kLocationDevice, device_};
    int rdma = 0;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    if (calls_.device_attribute(&rdma, 110, device_) == 0 && rdma != 0) p.flags[1] = 1;
    return p;
  }
  std::size_t rounded(std::size_t bytes) const {
    const AllocationProperties p = prop();
    std::size_t step = 0;
    if (calls_.granularity(&step, &p, 0) != 0 || step == 0) step = std::size_t{2} << 20;
    return (bytes + step - 1) / step * step;
  }
  bool map_new(std::size_t bytes, Address& p, std::string& why) {
    const AllocationProperties properties = prop();
    const std::size_t size = rounded(bytes);
    gpu::cuda::Handle handle = 0;
    if (!ok(calls_.handle_create(&handle, size, &properties, 0), "cuMemCreate", why)) return false;
    AccessDescription access;
    access.location = {gpu::cuda::kLocationDevice, device_};
    access.flags = gpu::cuda::kAccessReadWrite;
    const bool mapped = ok(calls_.address_reserve(&p, size, 0, 0, 0), "cuMemAddressReserve", why) &&
                        ok(calls_.map(p, size, 0, handle, 0), "cuMemMap", why) &&
                        ok(calls_.set_access(p, size, &access, 1), "cuMemSetAccess", why);
    (void)calls_.handle_release(handle);  // the mapping keeps the memory
    return mapped;
  }

  CudaApi calls_;
  int gpu_ = 0, device_ = 0;
  void* context_ = nullptr;
  std::string name_;
  std::mutex mutex_;
  std::map<Address, std::size_t> mapped_;  // VMM size, 0 for cuMemAlloc
};

}  // namespace

std::shared_ptr<CudaDriver> CudaDriver::open(int gpu, std::string& why) {
  auto driver = std::make_shared<Driver>();
  if (!driver->start(gpu, why)) return nullptr;
  return driver;
}

}  // namespace twinpath::tools
