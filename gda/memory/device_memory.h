#pragma once
// Memory for what kernels and the engine share.  On a GPU where there is one; plain host memory
// where a CPU thread plays the GPU (tests, no CUDA driver in the process).
//
// Setup and teardown only.  Beside kernels that spin, allocating and copying go on, but slower
// (H200, 64 KiB: 4 ms instead of 0.01): both use no SM, and the copy engine through a stream of our
// own. Freeing GPU memory waits until no kernel runs on that GPU (cuMemFree does): never free from
// an engine thread, nor while holding a lock that an engine takes.  Threads: any.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/base/status.h"
#include "plugin/gpu/engine.h"

namespace twinpath::gda {

enum class Place : std::uint8_t {
  gpu,     // GPU memory: structures that device code reads; written by copy_in at setup only
  shared,  // host memory that both see at one address: queues, doorbells, signals
};

// One zeroed block, aligned to a page of the host.
class DeviceBlock {
 public:
  // gpu: CUDA ordinal, or -1 for "a CPU thread plays the GPU" (then both places are host memory,
  // as they are when the program has not loaded the CUDA driver).
  static Result<std::unique_ptr<DeviceBlock>> make(int gpu, Place place, std::size_t bytes);
  virtual ~DeviceBlock() = default;  // may wait for kernels, see above
  // As device code sees it.
  virtual std::uint64_t device_address() const = 0;
  // As the CPU sees it; null for GPU memory.
  virtual std::uint8_t* host() const = 0;
  virtual std::size_t bytes() const = 0;
  virtual Status copy_in(std::size_t offset, const void* from, std::size_t bytes) = 0;
};

// At set-up, as it may wait for kernels: has the copies of that GPU ready, and the block within
// their reach for as long as what it returns lives.  Null where that needs nothing, host memory
// too.
Result<std::shared_ptr<gpu::ImportedAllocation>> reach_block(int gpu, const DeviceBlock& block);

}  // namespace twinpath::gda
