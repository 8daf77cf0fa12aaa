#pragma once
// GPU memory of the made-up driver, registered with the soft HCA.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/gpu/dmabuf.h"
#include "test/fabric/fake_gpu.h"
#include "test/soft/pair.h"

namespace twinpath::test {

inline Config with_cuda() {
  Config c;
  c.soft_cuda = SoftCuda::inprocess;
  return c;
}

// By dma-buf; the registration is the caller's, or null.
inline ibv_mr* register_gpu(Side& side, std::uint64_t address, std::size_t bytes, unsigned access) {
  const UniqueFd fd(gpu::export_dmabuf(address, page_end(bytes)));
  return fd ? side.verbs.reg_dmabuf_mr(side.pd, 0, bytes, address, fd.get(),
                                       static_cast<int>(access))
            : nullptr;
}

// A page of GPU memory, or some, registered at one side.
class GpuPage {
 public:
  GpuPage(FakeGpu& gpu, Side& side, unsigned access = Options{}.access, std::size_t bytes = 4096)
      : gpu_(gpu),
        side_(side),
        words_(static_cast<std::uint64_t*>(std::aligned_alloc(page_size(), page_end(bytes)))) {
    std::memset(words_, 0, bytes);
    gpu.own(words_, bytes);
    mr = register_gpu(side, address(), bytes, access);
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

// Deregisters what a copy that the GPU has not made is at, and has it made once the key is
// withdrawn: earlier, on a busy machine, the rest of the transfer would still find the key. Whether
// deregistration waited for that.
inline bool waits_for_copy(FakeGpu& gpu, Side& side, ibv_mr* mr) {
  const soft::KeyView keys = soft::soft(side.context)->hca->keys().view();
  const std::uint32_t key = mr->lkey;
  std::atomic<bool> over{false};
  std::thread other([&] {
    (void)side.verbs.dereg_mr(mr);
    over.store(true);
  });
  const std::int64_t limit = now_ns() + 60 * kSecond;
  while (keys.peek(key) != nullptr && now_ns() < limit) ::usleep(1000);
  ::usleep(50'000);  // who does not wait is over by then, mostly
  const bool waited = !over.load();
  gpu.pause(false);
  other.join();
  return waited;
}

}  // namespace twinpath::test
