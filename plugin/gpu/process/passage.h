#pragma once
// Chunks of the passage (rings.h) that are free.  Threads: one.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/gpu/process/rings.h"

namespace twinpath::gpu::process {

class Passage {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  explicit Passage(std::byte* base) : base_(base) {
    for (std::uint32_t i = kChunks; i-- > 0;) free_.push_back(i);
  }
  // kNone: all are in use.
  std::uint32_t take() {
    if (free_.empty()) return kNone;
    const std::uint32_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void give_back(std::uint32_t chunk) { free_.push_back(chunk); }
  static std::uint64_t offset(std::uint32_t chunk) { return std::uint64_t{chunk} * kChunk; }
  std::byte* at(std::uint32_t chunk) const { return base_ + offset(chunk); }

 private:
  std::byte* const base_;
  std::vector<std::uint32_t> free_;  // never grows beyond its first size
};

}  // namespace twinpath::gpu::process
