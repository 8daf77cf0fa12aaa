#pragma once
// The few CUDA driver calls a network test needs, found in libcuda.so.1 at run time so that the
// tools build and start without CUDA.
//
// Threads: set_current() once per thread, then any call.
#include <cstddef>
#include <memory>
#include <string>

namespace twinpath::tools {

class CudaDriver {
 public:
  // Null and `why` when there is no driver or no such GPU (ordinals after CUDA_VISIBLE_DEVICES).
  static std::shared_ptr<CudaDriver> open(int gpu, std::string& why);
  virtual ~CudaDriver() = default;
  virtual int gpu() const = 0;
  virtual std::string gpu_name() const = 0;
  virtual bool set_current(std::string& why) = 0;
  // vmm: cuMemCreate with an exportable fd, as NCCL's own buffers; else cuMemAlloc.
  virtual void* allocate(std::size_t bytes, bool vmm, std::string& why) = 0;
  virtual void release(void* data) = 0;
  virtual bool copy_in(void* device, const void* host, std::size_t bytes) = 0;
  virtual bool copy_out(void* host, const void* device, std::size_t bytes) = 0;
  // A dma-buf fd for an allocation of ours, or -1 and `why`.
  virtual int export_dmabuf(void* device, std::size_t bytes, std::string& why) = 0;
};

}  // namespace twinpath::tools
