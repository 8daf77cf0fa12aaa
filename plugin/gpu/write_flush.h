#pragma once
// Makes visible what adapters have written to a GPU's memory, by a call of its driver
// (cuFlushGPUDirectRDMAWrites): when it returns, the GPU's kernels see all that had left the
// adapters before it was called, whatever has become of them since.  Where the platform orders such
// writes itself the driver does nothing, and nothing is needed (CUDA driver API, device attribute
// GPU_DIRECT_RDMA_WRITES_ORDERING).
//
// The call may wait for other calls of the program, one of which may wait for a kernel that waits
// for us: so a thread of its own makes it, which nobody ever waits for, as what it has is its own.
//
// Threads: one of the owner's, and its own.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace twinpath::gpu {

// Why the driver cannot do it for that GPU; empty: it can.
std::string lacks_write_flush(int gpu);

class WriteFlush {
 public:
  // The GPU's driver can do it.
  explicit WriteFlush(int gpu);
  ~WriteFlush();
  WriteFlush(const WriteFlush&) = delete;
  WriteFlush& operator=(const WriteFlush&) = delete;

  // All that has left the adapters by now is visible once done() has come to the result.  Allocates
  // nothing and never blocks.
  std::uint64_t ask();
  std::uint64_t done() const;
  // The driver has refused, which was logged; done() does not move any more.
  bool failed() const;

 private:
  struct Shared;
  static void run(Shared& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace twinpath::gpu
