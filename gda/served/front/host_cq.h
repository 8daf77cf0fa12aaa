#pragma once
// A CQ in host memory that kernels poll over PCIe (or a CPU thread polls in its stead).
//
// Threads: write() by the engine's only; the reader is the kernel.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gda/abi/cqe.h"
#include "gda/served/front/work_queue.h"

namespace twinpath::gda {

class HostCq final : public CqeWriter {
 public:
  // `cqes`: depth * 64 bytes, aligned to 64; filled here with entries of no lap.
  HostCq(std::uint8_t* cqes, std::uint32_t depth) : cqes_(cqes), mask_(depth - 1) {
    std::memset(cqes, kCqeFill, std::size_t{depth} * kCqeBytes);
  }

  void write(std::uint64_t index, const std::uint8_t (&cqe)[64]) override {
    std::uint8_t* slot = cqes_ + (index & mask_) * kCqeBytes;
    for (std::size_t i = 0; i + 4 < kCqeBytes; i += 4)
      store(slot, cqe, i, std::memory_order_relaxed);
    // Partner: the kernel's fence after it saw the owner bit (Producer::poll).  Everything this
    // thread did or saw before is visible to who sees the entry.
    store(slot, cqe, kCqeBytes - 4, std::memory_order_release);
  }

 private:
  static void store(std::uint8_t* slot, const std::uint8_t* cqe, std::size_t at,
                    std::memory_order order) {
    std::uint32_t dword = 0;
    std::memcpy(&dword, cqe + at, sizeof dword);
    std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(slot + at))
        .store(dword, order);
  }
  std::uint8_t* const cqes_;
  const std::uint64_t mask_;
};

}  // namespace twinpath::gda
