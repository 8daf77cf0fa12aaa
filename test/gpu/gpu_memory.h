#pragma once
// GPU memory for tests, through the driver library opened at run time (no CUDA needed to build).
//
// Threads: the test thread.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/gpu/driver.h"

namespace twinpath::test {

// Opens the driver as a program that uses CUDA would have done; number of GPUs, 0 without one.
// Primary contexts of the first two GPUs are made and the first is current.
int open_gpus();

enum class Kind { malloc, vmm, vmm_private };  // vmm_private: no handle that could be shared

// One allocation on one GPU; freed by the destructor.
class GpuMemory {
 public:
  GpuMemory(Kind kind, int gpu, std::size_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  std::uint64_t address() const { return address_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Kind kind_;
  int gpu_;
  std::size_t bytes_;
  gpu::cuda::Address address_ = 0;
  gpu::cuda::Handle handle_ = 0;
};

// Pinned host memory.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  template <class T = std::uint8_t>
  T* as() {
    return static_cast<T*>(p_);
  }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(p_); }

 private:
  void* p_ = nullptr;
};

// Blocking copies that do not use what is tested.
void to_gpu(std::uint64_t gpu_address, const void* from, std::size_t bytes);
std::vector<std::uint8_t> from_gpu(std::uint64_t gpu_address, std::size_t bytes);
// Makes that GPU current on this thread.
void use_gpu(int gpu);

}  // namespace twinpath::test
