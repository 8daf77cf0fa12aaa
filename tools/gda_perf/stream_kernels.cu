// Many messages in flight: message rate and bandwidth.  One thread per block posts; block b uses
// context b modulo the number of contexts.
#include "tools/gda_perf/wait.cuh"

namespace twinpath::gda_perf {
namespace {

template <Notice notice>
__global__ void rate_kernel(const __grid_constant__ RateArgs a) {
  const Side& side = a.side;
  const ncclTeam world = ncclTeamWorld(side.comm);
  const ncclGin gin(side.comm, static_cast<int>(blockIdx.x) % a.contexts);
  const std::size_t base = std::size_t{blockIdx.x} * kRateSlots * kRateMessageBytes;
  Outcome out{};
  Wait wait{a.wait_ns, out};
  if (wait.gate(a.gate)) {
    mark_start(out);
    for (std::uint64_t i = 0; i < a.messages; ++i) {
      const std::size_t at = base + i % kRateSlots * kRateMessageBytes;
      if constexpr (notice == Notice::signal_and_counter) {
        gin.put(world, side.peer, side.window, side.peer_receive_at + at, side.window,
                side.send_at + at, kRateMessageBytes, notify(side, kMainSignal),
                ncclGin_CounterInc{0});
      } else if constexpr (notice == Notice::signal) {
        gin.put(world, side.peer, side.window, side.peer_receive_at + at, side.window,
                side.send_at + at, kRateMessageBytes, notify(side, kMainSignal));
      } else {
        gin.put(world, side.peer, side.window, side.peer_receive_at + at, side.window,
                side.send_at + at, kRateMessageBytes);
      }
    }
    gin.flush(ncclCoopThread{});
    mark_end(out);
    if (notice == Notice::none) {
      gin.signal(world, side.peer, notify(side, kMainSignal));
      gin.flush(ncclCoopThread{});
    }
  }
  a.outcome[blockIdx.x] = out;
}

__device__ void send_messages(const ncclGin& gin, const StreamArgs& a) {
  const Side& side = a.side;
  const ncclTeam world = ncclTeamWorld(side.comm);
  const std::uint64_t step = gridDim.x;
  for (std::uint64_t i = blockIdx.x; i < a.messages; i += step) {
    const std::size_t at = i % a.slots * a.bytes;
    if (i + step < a.messages) {
      gin.put(world, side.peer, side.window, side.peer_receive_at + at, side.window,
              side.send_at + at, a.bytes);
    } else {
      gin.put(world, side.peer, side.window, side.peer_receive_at + at, side.window,
              side.send_at + at, a.bytes, notify(side, kDoneSignal + blockIdx.x));
    }
  }
}

__global__ void stream_kernel(const __grid_constant__ StreamArgs a) {
  const Side& side = a.side;
  const ncclTeam world = ncclTeamWorld(side.comm);
  const ncclGin gin(side.comm, static_cast<int>(blockIdx.x) % a.contexts);
  Outcome out{};
  Wait wait{a.wait_ns, out};
  bool good = true;
  if (blockIdx.x == 0) {  // both kernels run before the clock does
    gin.signal(world, side.peer, notify(side, kMainSignal));
    good = wait.signal(gin, own_signal(side, kMainSignal), 1, 0);
  }
  good = good && wait.gate(a.gate);
  mark_start(out);
  if (good && a.sends) send_messages(gin, a);
  if (good && a.receives) {
    good = wait.signal(gin, own_signal(side, kDoneSignal + blockIdx.x), 1, 0);
    if (good) gin.signal(world, side.peer, notify(side, kAckSignal + blockIdx.x));
  }
  if (good && a.sends) good = wait.signal(gin, own_signal(side, kAckSignal + blockIdx.x), 1, 0);
  mark_end(out);
  if (good) gin.flush(ncclCoopThread{});
  a.outcome[blockIdx.x] = out;
}

}  // namespace

cudaError_t launch_rate(const RateArgs& args, cudaStream_t stream) {
  const auto kernel = args.notice == Notice::none     ? rate_kernel<Notice::none>
                      : args.notice == Notice::signal ? rate_kernel<Notice::signal>
                                                      : rate_kernel<Notice::signal_and_counter>;
  kernel<<<args.blocks, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_stream(const StreamArgs& args, cudaStream_t stream) {
  stream_kernel<<<args.blocks, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t load_stream_kernels() {
  cudaFuncAttributes ignored;
  cudaError_t error = cudaFuncGetAttributes(&ignored, rate_kernel<Notice::none>);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, rate_kernel<Notice::signal>);
  if (error == cudaSuccess)
    error = cudaFuncGetAttributes(&ignored, rate_kernel<Notice::signal_and_counter>);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, stream_kernel);
  return error;
}

}  // namespace twinpath::gda_perf
