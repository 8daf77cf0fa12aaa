#pragma once
// One GPU's part in the communicator: memory, window and device communicator; and one side's
// stream and result memory.
//
// Threads: a Rank is made and destroyed by one thread while the other ranks' threads do the same
// (NCCL's calls are collective).  A Side's objects belong to the side's thread.
#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tools/gda_perf/kernels.h"
#include "tools/gda_perf/nccl_api.h"

namespace twinpath::gda_perf {

// Throws ToolError, naming `what`.
void check(cudaError_t error, const std::string& what);

class Rank {
 public:
  // `halves`: sides that this GPU plays, 1 or 2; each gets two areas of `area` bytes.
  Rank(const NcclApi& nccl, int rank, int ranks, const ncclUniqueId& id, std::size_t area,
       int halves, int contexts, bool window_signals);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int device() const { return device_; }
  int contexts() const { return device_comm_.ginContextCount; }
  const char* backend() const;
  ncclComm_t comm() const { return comm_; }
  // The side of half `my_half`, whose peer is world rank `peer`.
  Side side(unsigned my_half, int peer) const;

 private:
  // Behind the areas.
  std::size_t words_at() const { return 2 * area_ * static_cast<std::size_t>(halves_); }

  const NcclApi& nccl_;
  int device_;
  std::size_t area_;
  int halves_;
  ncclComm_t comm_ = nullptr;
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
  ncclDevComm device_comm_{};
};

class Player {
 public:
  Player(const Rank& rank, unsigned my_half, int peer, const NcclApi& nccl, unsigned iterations);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  void use() const;  // makes the GPU current in the calling thread
  const Side& side() const { return side_; }
  cudaStream_t stream() const { return stream_; }
  std::uint64_t* ticks() const { return ticks_; }
  unsigned* gate() const { return gate_; }
  unsigned long long* wrong() const { return wrong_; }
  // Zero before each launch; one per block.
  Outcome* outcomes() const { return outcomes_; }
  void clear_outcomes();
  // Waits for the stream; throws ToolError when the GPU or NCCL reports an error, or one of the
  // first `blocks` outcomes has a fault.
  void finish(int blocks, const std::string& what);
  // Durations of `count` timed iterations in microseconds.
  std::vector<double> times_us(unsigned count) const;

 private:
  std::string fault_text(const Outcome& outcome) const;

  const Rank& rank_;
  const NcclApi& nccl_;
  Side side_;
  double clock_khz_ = 0;
  cudaStream_t stream_ = nullptr;
  std::uint64_t* ticks_ = nullptr;
  unsigned* gate_ = nullptr;
  unsigned long long* wrong_ = nullptr;
  Outcome* outcomes_ = nullptr;
};

}  // namespace twinpath::gda_perf
