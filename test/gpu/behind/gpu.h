#pragma once
// Memory and streams of CUDA with owners, and errors as exceptions.
//
// Threads: each object belongs to the thread that made it.  Destructors ignore errors.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/common/failure.h"

namespace twinpath::behind {

// Throws tools::Failure with `what` and CUDA's words.
inline void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  throw tools::Failure(what + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
                       ")");
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    check(cudaMalloc(&data_, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
  }
  ~DeviceMemory() { (void)cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) {
    check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  }
  ~PinnedMemory() { (void)cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  explicit Stream(unsigned flags) {
    check(cudaStreamCreateWithFlags(&stream_, flags), "cudaStreamCreateWithFlags");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace twinpath::behind
