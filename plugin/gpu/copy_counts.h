#pragma once
// What a thread that carries out copies, or has them carried out, has done so far.
//
// One thread counts, so that no locked instruction is needed.
// Threads: ended, issued: that one; statistics: any.
#include <atomic>
#include <cstdint>

#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

// What one look at a stream has given to it.
struct LaneCounts {
  std::uint64_t batches = 0, write_values = 0, staged = 0;
};

class CopyCounts {
 public:
  // A job has ended; only one that ended well has moved its bytes.
  void ended(Status status, std::uint64_t bytes) {
    add(jobs_, 1);
    if (status == Status::ok) add(bytes_, bytes);
  }
  void issued(const LaneCounts& c) {
    if (c.batches == 0) return;
    add(batches_, c.batches);
    add(write_values_, c.write_values);
    add(staged_, c.staged);
  }
  CopyStatistics statistics() const {
    CopyStatistics s;
    s.jobs = jobs_.load(std::memory_order_relaxed);
    s.bytes = bytes_.load(std::memory_order_relaxed);
    s.batches = batches_.load(std::memory_order_relaxed);
    s.write_values = write_values_.load(std::memory_order_relaxed);
    s.staged = staged_.load(std::memory_order_relaxed);
    return s;
  }

 private:
  static void add(std::atomic<std::uint64_t>& c, std::uint64_t n) {
    c.store(c.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> jobs_{0}, bytes_{0}, batches_{0}, write_values_{0}, staged_{0};
};

}  // namespace twinpath::gpu
