#pragma once
// Windows in the memory of a GPU that is made up.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "gda/rma/rma.h"
#include "test/fabric/fake_gpu.h"
#include "test/gda/gin_ranks.h"

namespace twinpath::test {

// Of the test that runs; set before any rank starts.
inline FakeGpu* fake = nullptr;

// GPU memory that is a window of GIN's comms, or of RMA's.
template <class Comm, class Window>
class GpuMemory {
 public:
  // Collective.
  GpuMemory(Comm& comm, std::size_t bytes, const gda::WindowTraits& traits)
      : comm_(comm),
        p_(static_cast<std::uint8_t*>(std::aligned_alloc(page_size(), page_end(bytes)))) {
    std::memset(p_, 0, bytes);
    fake->own(p_, bytes);
    auto window = comm.register_window(p_, bytes, MemoryType::cuda, 0, -1, traits);
    if (window) window_ = *window;
  }
  ~GpuMemory() {
    release();
    fake->disown(p_);
    std::free(p_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  void release() {
    if (window_ != nullptr) (void)comm_.deregister_window(window_);
    window_ = nullptr;
  }
  explicit operator bool() const { return window_ != nullptr; }
  std::uint8_t* data() const { return p_; }
  std::uint64_t word(std::size_t offset) {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(p_ + offset))
        .load(std::memory_order_acquire);
  }

 protected:
  Window* window() const { return window_; }

 private:
  Comm& comm_;
  std::uint8_t* const p_;
  Window* window_ = nullptr;
};

struct GpuWindow : GpuMemory<gda::GinComm, gda::GinWindow> {
  GpuWindow(gda::GinComm& comm, std::size_t bytes) : GpuMemory(comm, bytes, {}) {}
  std::uint64_t handle() const { return window()->device_handle(); }
};

struct RmaGpuMemory : GpuMemory<gda::RmaComm, gda::RmaWindow> {
  // As NCCL's own signals.
  RmaGpuMemory(gda::RmaComm& comm, std::size_t bytes, bool never_reset = true)
      : GpuMemory(comm, bytes, {.strict = true, .never_reset = never_reset}) {}
  gda::RmaPlace at(std::uint64_t offset) const { return {window(), offset}; }
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

 protected:
  gpu::cuda::Driver driver_;
};

}  // namespace twinpath::test
