#pragma once
// An adapter's doorbell register as kernels see it.
//
// Threads: any.
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/gpu/mapped_page.h"

namespace twinpath::gda::mlx5 {

class GpuDoorbell {
 public:
  // Maps the page of `bell`, an address of this process, into the GPU.  `real`: registers of a
  // device, else memory of an adapter that is software.  Null and `why_not`, which says what to do.
  static std::unique_ptr<GpuDoorbell> map(int gpu, void* bell, bool real, std::string& why_not);

  std::uint64_t address() const { return page_->address(); }

 private:
  explicit GpuDoorbell(std::unique_ptr<gpu::MappedPage> page) : page_(std::move(page)) {}
  const std::unique_ptr<gpu::MappedPage> page_;
};

// What the driver's refusal means, by its error number; pure.
std::string doorbell_refusal(int error, const std::string& name);

}  // namespace twinpath::gda::mlx5
