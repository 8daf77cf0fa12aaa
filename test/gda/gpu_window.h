#pragma once
// Windows in the memory of a GPU that is made up.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "test/fabric/fake_gpu.h"
#include "test/gda/gin_ranks.h"

namespace twinpath::test {

// Of the test that runs; set before any rank starts.
inline FakeGpu* fake = nullptr;

// A window of GPU memory.
class GpuWindow {
 public:
  GpuWindow(gda::GinComm& comm, std::size_t bytes)
      : comm_(comm),
        p_(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), page_end(bytes)))) {
    std::memset(p_, 0, bytes);
    fake->own(p_, bytes);
    auto window = comm.register_window(p_, bytes, MemoryType::cuda, 0, -1, false);
    if (window) window_ = *window;
  }
  ~GpuWindow() {
    release();
    fake->disown(p_);
    std::free(p_);
  }
  GpuWindow(const GpuWindow&) = delete;
  GpuWindow& operator=(const GpuWindow&) = delete;
  void release() {
    if (window_ != nullptr) (void)comm_.deregister_window(window_);
    window_ = nullptr;
  }
  explicit operator bool() const { return window_ != nullptr; }
  std::uint64_t handle() const { return window_->device_handle(); }
  std::uint8_t* data() { return p_; }

 private:
  gda::GinComm& comm_;
  std::uint8_t* const p_;
  gda::GinWindow* window_ = nullptr;
};

// The made-up driver with GPU memory for who allocates some, which kernels' structures and tables
// lie in then; freeing it waits for kernels, as the real one does.
class GpuWithMemory : public FakeGpu {
 public:
  GpuWithMemory() : driver_(*gpu::cuda::driver()) {
    fake = this;
    kernels = 0;
    driver_.mem_alloc = [](gpu::cuda::Address* p, std::size_t n) {
      void* const at = std::aligned_alloc(4096, page_end(n));
      fake->own(at, n);
      return *p = reinterpret_cast<std::uintptr_t>(at), 0;
    };
    driver_.mem_free = [](gpu::cuda::Address p) {
      while (kernels.load() != 0) std::this_thread::yield();
      fake->disown(reinterpret_cast<void*>(p));
      std::free(reinterpret_cast<void*>(p));
      return 0;
    };
    driver_.host_device_pointer = [](gpu::cuda::Address* seen, void* p, unsigned) {
      return *seen = reinterpret_cast<std::uintptr_t>(p), 0;
    };
    gpu::cuda::set_driver_for_test(&driver_);
  }
  static inline std::atomic<int> kernels{0};  // that run

 private:
  gpu::cuda::Driver driver_;
};

}  // namespace twinpath::test
