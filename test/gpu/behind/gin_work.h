#pragma once
// One rank's window and device communicator for all-reduces by GIN.
//
// Threads: made by one thread a rank at the same time, for NCCL's calls are collective; used by the
// rank's.  Nothing is given back: the process ends with it.
#include "test/gpu/behind/gin_kernel.h"
#include "tools/gda_perf/nccl_api.h"

namespace twinpath::behind {

class GinWork {
 public:
  // `largest`: bytes of the largest all-reduce.  The GPU is current.  Throws tools::Failure.
  GinWork(const gda_perf::NcclApi& nccl, ncclComm_t comm, int rank, int ranks, std::size_t largest);
  GinWork(const GinWork&) = delete;
  GinWork& operator=(const GinWork&) = delete;

  float* send() const { return static_cast<float*>(memory_); }
  void reduce(float* sums, std::size_t count, cudaStream_t stream);

 private:
  std::size_t place_bytes_;
  void* memory_ = nullptr;
  std::uint64_t done_ = 0;
  GinExchange exchange_{};
};

}  // namespace twinpath::behind
