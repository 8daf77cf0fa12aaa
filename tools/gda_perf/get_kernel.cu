// Reads of the peer's memory, one at a time.
//
// The peer writes a message of its own for each read before it lets this side read it, and writes
// the next one only when this side has seen it: a read that gives what an earlier one left in the
// receive area, or that ends before its data is visible, is counted as wrong.
#include "tools/gda_perf/wait.cuh"

namespace twinpath::gda_perf {
namespace {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)

__device__ void read_and_compare(const ncclGin& gin, const LatencyArgs& a, std::uint64_t i,
                                 Outcome& out) {
  const Side& side = a.side;
  const std::uint64_t begin = clock_ticks();
  gin.get(ncclTeamWorld(side.comm), side.peer, side.window, side.peer_send_at, side.window,
          side.receive_at, a.bytes);
  gin.flush(ncclCoopThread{});
  const std::uint64_t end = clock_ticks();
  out.wrong +=
      wrong_stamps(side.receive, a.bytes / sizeof(std::uint64_t), Stamp::of(i, side.half ^ 1));
  if (i >= a.warmup) a.ticks[i - a.warmup] = end - begin;
}

__global__ void get_kernel(const __grid_constant__ LatencyArgs a) {
  const ncclGin gin(a.side.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.side.comm);
  const unsigned own = own_signal(a.side, kMainSignal);
  const std::uint64_t total = std::uint64_t{a.warmup} + a.iterations;
  Outcome out{};
  Wait wait{a.wait_ns, out};
  mark_start(out);
  for (std::uint64_t i = 0; i < total; ++i) {
    if (!a.initiator) {
      write_stamp(a.side.send, a.bytes / sizeof(std::uint64_t), Stamp::of(i, a.side.half));
      // The adapter reads this memory for the peer: nothing here is a source of the signal.
      __threadfence_system();
      gin.signal(world, a.side.peer, notify(a.side, kMainSignal));
    }
    if (!wait.signal(gin, own, i + 1, i)) break;
    if (!a.initiator) continue;
    read_and_compare(gin, a, i, out);
    gin.signal(world, a.side.peer, notify(a.side, kMainSignal));
  }
  mark_end(out);
  if (out.fault == Fault::none) gin.flush(ncclCoopThread{});
  *a.outcome = out;
}

using Kernel = void (*)(LatencyArgs);
constexpr Kernel kKernel = get_kernel;

#else

using Kernel = void (*)(LatencyArgs);
constexpr Kernel kKernel = nullptr;

#endif

}  // namespace

cudaError_t launch_get(const LatencyArgs& args, cudaStream_t stream) {
  const Kernel kernel = kKernel;
  if (kernel == nullptr) return cudaErrorNotSupported;
  kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t load_get_kernel() {
  const Kernel kernel = kKernel;
  cudaFuncAttributes ignored;
  return kernel == nullptr ? cudaSuccess : cudaFuncGetAttributes(&ignored, kernel);
}

}  // namespace twinpath::gda_perf
