#pragma once
// An all-reduce by one kernel that puts to every other rank through NCCL's GIN, and adds up.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

namespace twinpath::behind {

// Offsets are bytes in the window, which is laid out alike on all ranks: what the rank puts, and
// two sets of places, one for each rank in a set.  Sets take turns: who is a round ahead writes to
// the one that nobody reads any more.
struct GinExchange {
  ncclDevComm comm;
  ncclWindow_t window;
  int rank = 0, ranks = 1;
  std::size_t send_at = 0, places_at = 0;  // of the set in use
  std::size_t place_bytes = 0;
  const std::byte* memory = nullptr;  // the window's own
  float* sums = nullptr;
  std::size_t count = 0;      // elements
  std::uint64_t signals = 0;  // that must have come once all have put
};

cudaError_t load_exchange();  // so that its first launch loads nothing
void launch_exchange(const GinExchange& exchange, cudaStream_t stream);

}  // namespace twinpath::behind
