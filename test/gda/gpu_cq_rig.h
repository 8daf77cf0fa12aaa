#pragma once
// CQs in GPU memory as a context has them, without an adapter: over a made-up CUDA driver whose
// streams really run later, CPU threads poll them as kernels do.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gda/abi/gin_kernel.h"
#include "gda/context/context_cqs.h"
#include "gda/served/front/key_table.h"
#include "test/fabric/fake_gpu.h"
#include "test/gda/gdrapi_stand_in.h"
#include "test/support/catch.h"

namespace twinpath::gda {

namespace cuda = gpu::cuda;
using test::FakeGpu;

inline constexpr std::int64_t kTimeLimit = 40 * kSecond;

// That driver, with memory of its own besides; freeing it waits for kernels, as the real one does.
// What it hands out begins somewhere in a page of the GPU, and can be mapped a second time.
class SlowGpu : public FakeGpu {
 public:
  SlowGpu() : driver_(*cuda::driver()) {
    kernels = 0;
    driver_.mem_alloc = [](cuda::Address* p, std::size_t n) {
      constexpr std::uint64_t kPage = 64 * 1024;
      const std::size_t room = n + 2 * kPage;
      void* const base =
          mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (base == MAP_FAILED) return 2;
      *p = (reinterpret_cast<std::uintptr_t>(base) + kPage) / kPage * kPage + 0x3200;
      const std::lock_guard lock(mutex());
      blocks()[*p] = {base, room, n};
      if (gdrcopy != nullptr) gdrcopy->allocations[*p] = n;
      return 0;
    };
    driver_.mem_free = [](cuda::Address p) {
      while (kernels.load() != 0) std::this_thread::yield();
      const std::lock_guard lock(mutex());
      const Block block = blocks().at(p);
      if (gdrcopy != nullptr) {
        gdrcopy->freeing(p, block.bytes);
        gdrcopy->allocations.erase(p);
      }
      blocks().erase(p);
      munmap(block.base, block.room);
      return 0;
    };
    driver_.host_device_pointer = [](cuda::Address* seen, void* p, unsigned) {
      *seen = reinterpret_cast<std::uintptr_t>(p);
      return 0;
    };
    cuda::set_driver_for_test(&driver_);
  }
  static inline std::atomic<int> kernels{0};          // that run
  static inline test::GdrStandIn* gdrcopy = nullptr;  // what learns of its memory

 private:
  struct Block {
    void* base = nullptr;
    std::size_t room = 0, bytes = 0;
  };
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<cuda::Address, Block>& blocks() {
    static std::map<cuda::Address, Block> all;
    return all;
  }
  cuda::Driver driver_;
};

// Done as soon as the queue asks for it to begin.
class QuickBackEnd final : public BackEnd {
 public:
  Issued issue(std::uint64_t index, const Operation&) override {
    last_ = index;
    return Issued::accepted;
  }
  void flush() override { queue->complete(last_); }
  WorkQueue* queue = nullptr;

 private:
  std::uint64_t last_ = 0;
};

// Queues as a context has them, without an adapter.
struct Queues {
  explicit Queues(int ranks, std::uint32_t depth = 16, std::uint64_t counters = 0,
                  bool gdrcopy = false)
      : keys(ranks) {
    shape.ranks = ranks;
    shape.depth = depth;
    shape.signals = 4;
    shape.counters = counters;
    shape.gpu_cqs = true;
    shape.gdrcopy = gdrcopy;
    memory = ContextMemory::make(0, shape).take();
    cqs = ContextCqs::make(0, shape, *memory).take();
    constexpr std::uint32_t kFirst = 0x100;
    back_ends.resize(shape.queues());
    for (std::size_t q = 0; q < shape.queues(); ++q) {
      WorkQueueSetup setup;
      setup.qpn = setup.cqn = kFirst + static_cast<std::uint32_t>(q);
      setup.depth = depth;
      setup.sq = memory->sq(q);
      setup.doorbell = memory->doorbell(q);
      setup.keys = &keys;
      setup.poison = 0x9d3c5a7e1b2f4861u;
      queues.push_back(std::make_unique<WorkQueue>(setup, back_ends[q], cqs->at(q),
                                                   [](std::uint32_t) { return nullptr; }));
      back_ends[q].queue = queues.back().get();
    }
    std::vector<DeviceQueue> seen;
    for (std::size_t q = 0; q < shape.queues(); ++q)
      seen.push_back(memory->device_queue(q, kFirst + static_cast<std::uint32_t>(q)));
    DeviceKeys none;
    none.signals_there.assign(static_cast<std::size_t>(ranks), 0);
    filled = memory->fill(seen, none);
  }
  GinKernel28 kernel() const { return {memory->device_handle(), 0, kTimeLimit}; }
  // What the engine does.
  void turn() {
    for (auto& queue : queues) (void)queue->scan(64);
    (void)cqs->send();
  }
  const std::uint8_t* cqe(std::size_t q, std::uint64_t index) const {
    return reinterpret_cast<const std::uint8_t*>(memory->cq_address(q)) +
           index % shape.depth * kCqeBytes;
  }

  ContextShape shape;
  KeyTable keys;
  std::unique_ptr<ContextMemory> memory;
  std::unique_ptr<ContextCqs> cqs;
  std::vector<QuickBackEnd> back_ends;
  std::vector<std::unique_ptr<WorkQueue>> queues;
  Status filled = Status::ok;
};

// 0 when each of `count` NOPs came back.
inline int post_nops(Producer<DeviceQp28> queue, int count) {
  for (int i = 0; i < count; ++i) {
    std::uint64_t first = 0;
    if (const int code = queue.reserve(1, first); code != 0) return code;
    queue.write(first, make_nop(first, queue.qpn()));
    if (const int code = queue.submit(first, 1); code != 0) return code;
    if (i % 3 != 0) continue;
    if (const int code = queue.poll(first); code != 0) return code;
  }
  return queue.wait_all();
}

inline void kernels_come_through(Queues& all, int threads, int count) {
  std::atomic<int> running{0}, wrong{0};
  std::vector<std::thread> kernels;
  for (int r = 0; r < all.shape.ranks; ++r) {
    for (int t = 0; t < threads; ++t) {
      ++running;
      kernels.emplace_back([&, r] {
        if (post_nops(all.kernel().queue_to(r), count) != 0) ++wrong;
        --running;
      });
    }
  }
  while (running != 0) {
    all.turn();
    std::this_thread::yield();
  }
  for (auto& kernel : kernels) kernel.join();
  CHECK(wrong == 0);
  CHECK(all.cqs->wait(kTimeLimit));
}

}  // namespace twinpath::gda
