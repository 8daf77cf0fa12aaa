#pragma once
// The way out for kernels that spin on a queue that will never answer: a consumer index that is
// higher than any WQE's number makes every poll of the queue return.  What they then read is
// garbage; the communicator has reported its error by then.
//
// Threads: release by the engine's (it neither waits nor allocates); the rest by the owner.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gda/memory/device_memory.h"
#include "gda/memory/release_job.h"

namespace twinpath::gda {

class KernelRelease {
 public:
  static constexpr std::uint64_t kConsumedAll = std::uint64_t{1} << 62;

  // `consumed`: offset of each queue's consumer index in `block`.  `source`: 8 bytes that the GPU
  // reads, in pinned memory.  Both outlive this and, if wait() fails, everything.
  KernelRelease(int gpu, DeviceBlock& block, std::vector<std::size_t> consumed,
                std::uint64_t* source);

  // Kernels at queue number `queue` go on.  Once per queue; later calls do nothing.
  void release(std::size_t queue);
  void release_all();
  bool released(std::size_t queue) const { return jobs_[queue].begun; }
  // Until all that was begun is in GPU memory; false after the time limit.
  bool wait(std::int64_t limit_ns) const;

 private:
  struct Job : ReleaseJob {
    std::atomic<int>* pending = nullptr;
    bool begun = false;
  };
  const int gpu_;
  DeviceBlock& block_;
  const std::vector<std::size_t> consumed_;
  std::uint64_t* const source_;
  std::shared_ptr<gpu::ImportedAllocation> reach_;  // of block_
  std::vector<Job> jobs_;
  // Its own allocation: a copy thread may still count down when the owner has given up.
  std::unique_ptr<std::atomic<int>> pending_;
};

}  // namespace twinpath::gda
