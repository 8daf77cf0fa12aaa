#pragma once
// Work of a stream as a CUDA graph.
//
// Threads: the rank's thread.  Lifetime: the stream, and what the work uses, outlive it.
#include <functional>

#include "tools/coll_perf/cuda_api.h"

namespace twinpath::coll {

class Recorded {
 public:
  // What `work` gives the stream is recorded, not done.  Throws what it throws.
  Recorded(const CudaApi& cuda, CuStream stream, const std::function<void()>& work);
  ~Recorded();
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  void launch() const;

 private:
  const CudaApi& cuda_;
  const CuStream stream_;
  gpu::cuda::Graph graph_ = nullptr;
  gpu::cuda::GraphExec ready_ = nullptr;
};

}  // namespace twinpath::coll
