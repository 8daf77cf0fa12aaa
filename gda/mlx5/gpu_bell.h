#pragma once
// An adapter's doorbell register as kernels see it.
//
// Threads: any.
#include <cstdint>
#include <memory>
#include <string>

namespace twinpath::gda::mlx5 {

class GpuBell {
 public:
  // Maps the page of `bell`, an address of this process, into the GPU.  `real`: registers of a
  // device, else memory of an adapter that is software.  Null and `why_not`, which says what to do.
  static std::unique_ptr<GpuBell> map(int gpu, void* bell, bool real, std::string& why_not);
  ~GpuBell();  // waits for kernels
  GpuBell(const GpuBell&) = delete;
  GpuBell& operator=(const GpuBell&) = delete;

  std::uint64_t address() const { return address_; }

 private:
  GpuBell(int gpu, void* bell, std::uint64_t address) : gpu_(gpu), bell_(bell), address_(address) {}
  const int gpu_;
  void* const bell_;
  const std::uint64_t address_;
};

// What the driver's refusal means, by its error number; pure.
std::string bell_refusal(int error, const std::string& name);

}  // namespace twinpath::gda::mlx5
