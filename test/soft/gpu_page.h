#pragma once
// GPU memory of the made-up driver, registered with the soft HCA.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "test/fabric/fake_gpu.h"
#include "test/soft/pair.h"

namespace twinpath::test {

inline Config with_cuda() {
  Config c;
  c.soft_cuda = SoftCuda::inprocess;
  return c;
}

// A page of GPU memory, or some, registered at one side.
class GpuPage {
 public:
  GpuPage(FakeGpu& gpu, Side& side, unsigned access = Options{}.access, std::size_t bytes = 4096)
      : gpu_(gpu),
        side_(side),
        words_(static_cast<std::uint64_t*>(std::aligned_alloc(4096, bytes))) {
    std::memset(words_, 0, bytes);
    gpu.own(words_, bytes);
    mr = side.verbs.reg_mr_iova2(side.pd, words_, bytes, address(), access);
  }
  ~GpuPage() {
    if (mr != nullptr) side_.verbs.dereg_mr(mr);
    gpu_.disown(words_);
    std::free(words_);
  }
  GpuPage(const GpuPage&) = delete;
  GpuPage& operator=(const GpuPage&) = delete;
  std::uint64_t address(std::size_t word = 0) const {
    return reinterpret_cast<std::uint64_t>(words_ + word);
  }
  // The fake GPU's thread writes it.
  std::uint64_t value(std::size_t word = 0) const {
    return std::atomic_ref(words_[word]).load(std::memory_order_acquire);
  }
  ibv_mr* mr = nullptr;

 private:
  FakeGpu& gpu_;
  Side& side_;
  std::uint64_t* const words_;
};

}  // namespace twinpath::test
