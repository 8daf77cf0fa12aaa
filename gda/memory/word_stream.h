#pragma once
// Words of 64 bits into GPU memory beside kernels that spin: a stream that carries nothing but
// write-values, many in one driver call (H200: 4 us alone, under 1 us each in a batch).
//
// The caller's thread submits: the way through a copy thread would be longer, and behind copies.
// Submitting does not wait as long as few batches are under way, so more are refused: see room().
// The stream has a priority of its own because streams of the same priority may share a hardware
// queue, and there a kernel that waits for an earlier one would hold up what that one waits for.
//
// Threads: made and destroyed by the owner, used by one thread.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gda/memory/device_memory.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {

class WordStream {
 public:
  static constexpr std::size_t kBatch = gpu::cuda::kMaxMemOps - 1;  // one more says "finished"
  static constexpr std::uint64_t kBatches = 8;                      // under way at most

  static Result<std::unique_ptr<WordStream>> make(int gpu);
  // Does not wait for what is under way; wait() first.
  ~WordStream();
  WordStream(const WordStream&) = delete;
  WordStream& operator=(const WordStream&) = delete;

  // How many words the next submission can take; 0: ask again later.
  std::size_t room() const;
  // At most room() of them.  They arrive in this order, each after all that the CPU wrote before
  // submit().
  void add(std::uint64_t address, std::uint64_t value);
  void submit();
  bool dead() const { return dead_; }
  // Asks the driver whether the stream still works.
  void check();
  // Until all that was submitted is there; false after the time limit.
  bool wait(std::int64_t limit_ns) const;

 private:
  WordStream(const gpu::cuda::Driver& d, int gpu) : d_(d), gpu_(gpu) {}
  bool arrived(std::uint64_t sequence) const;
  bool refuse(gpu::cuda::Result r, const char* call);

  const gpu::cuda::Driver& d_;
  const int gpu_;
  gpu::cuda::Context context_ = nullptr;
  gpu::cuda::Stream stream_ = nullptr;
  std::unique_ptr<DeviceBlock> word_;  // number of the newest batch that has arrived
  std::uint64_t submitted_ = 0;
  std::size_t count_ = 0;
  bool dead_ = false;
  std::array<gpu::cuda::MemOp, kBatch + 1> ops_;
};

}  // namespace twinpath::gda
