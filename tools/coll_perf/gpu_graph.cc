#include "tools/coll_perf/gpu_graph.h"

#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

// Other threads, NCCL's among them, may call what a capture forbids.
constexpr int kThisThread = 1;

}  // namespace

Recorded::Recorded(const CudaApi& cuda, CuStream stream, const std::function<void()>& work)
    : cuda_(cuda), stream_(stream) {
  if (!cuda.has_graphs())
    throw ToolError(kExitMissing, "this driver is too old for --graph; leave it out");
  cuda.check(cuda.capture_begin(stream, kThisThread), "recording a graph");
  try {
    work();
  } catch (...) {
    if (cuda.capture_end(stream, &graph_) == gpu::cuda::kSuccess && graph_ != nullptr)
      (void)cuda.graph_destroy(graph_);
    throw;
  }
  cuda.check(cuda.capture_end(stream, &graph_), "recording a graph");
  const CuResult made = cuda.graph_instantiate(&ready_, graph_, 0);
  if (made == gpu::cuda::kSuccess) return;
  (void)cuda.graph_destroy(graph_);
  cuda.check(made, "instantiating a graph");
}

Recorded::~Recorded() {
  (void)cuda_.graph_exec_destroy(ready_);
  (void)cuda_.graph_destroy(graph_);
}

void Recorded::launch() const {
  cuda_.check(cuda_.graph_launch(ready_, stream_), "launching a graph");
}

}  // namespace twinpath::coll
