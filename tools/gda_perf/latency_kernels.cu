// One thread per side: round trips and local completions, one operation at a time.
#include "tools/gda_perf/wait.cuh"

namespace twinpath::gda_perf {
namespace {

template <LatencyOp op>
__device__ void post(const ncclGin& gin, const LatencyArgs& a, std::uint64_t stamp) {
  const Side& side = a.side;
  const ncclTeam world = ncclTeamWorld(side.comm);
  const ncclGin_SignalInc main = notify(side, kMainSignal);
  if constexpr (op == LatencyOp::put) {
    gin.put(world, side.peer, side.window, side.peer_receive_at, side.window, side.send_at, a.bytes,
            main);
  } else if constexpr (op == LatencyOp::value) {
    gin.putValue(world, side.peer, side.window, side.peer_receive_at, stamp, main);
  } else if constexpr (op == LatencyOp::signal) {
    gin.signal(world, side.peer, main);
  } else if constexpr (op == LatencyOp::window_put) {
    gin.put(world, side.peer, side.window, side.peer_receive_at, side.window, side.send_at, a.bytes,
            notify_word<op>(side));
  } else if constexpr (op == LatencyOp::window_signal) {
    gin.signal(world, side.peer, notify_word<op>(side));
  } else if constexpr (op == LatencyOp::flush) {
    gin.put(world, side.peer, side.window, side.peer_receive_at, side.window, side.send_at,
            a.bytes);
  } else {
    gin.put(world, side.peer, side.window, side.peer_receive_at, side.window, side.send_at, a.bytes,
            ncclGin_None{}, ncclGin_CounterInc{0});
  }
}

template <LatencyOp op>
__device__ bool notified(Wait& wait, const ncclGin& gin, const Side& side, std::uint64_t i) {
  if constexpr (in_window(op)) return wait.word(*side.word, i + 1, i);
  return wait.signal(gin, own_signal(side, kMainSignal), i + 1, i);
}

template <LatencyOp op>
__global__ void latency_kernel(const __grid_constant__ LatencyArgs a) {
  constexpr bool kData = op != LatencyOp::signal && op != LatencyOp::window_signal;
  constexpr bool kBuffer = op != LatencyOp::value && kData;
  constexpr bool kAnswered = op != LatencyOp::flush && op != LatencyOp::counter;
  const ncclGin gin(a.side.comm, 0);
  const std::size_t words = a.bytes / sizeof(std::uint64_t);
  const std::uint64_t total = std::uint64_t{a.warmup} + a.iterations;
  Outcome out{};
  Wait wait{a.wait_ns, out};
  mark_start(out);
  for (std::uint64_t i = 0; i < total; ++i) {
    const std::uint64_t stamp = Stamp::of(i, a.side.half);
    if (!a.initiator) {
      if (!notified<op>(wait, gin, a.side, i)) break;
      if (kData) out.wrong += wrong_stamps(a.side.receive, words, Stamp::of(i, a.side.half ^ 1));
    }
    if constexpr (kBuffer) write_stamp(a.side.send, words, stamp);
    const std::uint64_t begin = clock_ticks();
    post<op>(gin, a, stamp);
    if (!a.initiator) continue;
    if constexpr (kAnswered) {
      if (!notified<op>(wait, gin, a.side, i)) break;
    } else if constexpr (op == LatencyOp::flush) {
      gin.flush(ncclCoopThread{});
    } else {
      if (!wait.counter(gin, 0, i + 1, i)) break;
    }
    const std::uint64_t end = clock_ticks();
    if (kAnswered && kData)
      out.wrong += wrong_stamps(a.side.receive, words, Stamp::of(i, a.side.half ^ 1));
    if (i >= a.warmup) a.ticks[i - a.warmup] = end - begin;
  }
  mark_end(out);
  // Tells the peer, which awaits it on the host's word, that all data was sent.
  if (!kAnswered && out.fault == Fault::none)
    gin.signal(ncclTeamWorld(a.side.comm), a.side.peer, notify(a.side, kMainSignal));
  // The last answer is in flight when a responder ends; its source must not change before.
  if (out.fault == Fault::none) gin.flush(ncclCoopThread{});
  *a.outcome = out;
}

using Kernel = void (*)(LatencyArgs);
template <bool there>
Kernel window_kernel_of(LatencyOp op) {
  if constexpr (there) {
    return op == LatencyOp::window_put ? latency_kernel<LatencyOp::window_put>
                                       : latency_kernel<LatencyOp::window_signal>;
  }
  return nullptr;
}
Kernel kernel_of(LatencyOp op) {
  switch (op) {
    case LatencyOp::put:
      return latency_kernel<LatencyOp::put>;
    case LatencyOp::value:
      return latency_kernel<LatencyOp::value>;
    case LatencyOp::signal:
      return latency_kernel<LatencyOp::signal>;
    case LatencyOp::flush:
      return latency_kernel<LatencyOp::flush>;
    case LatencyOp::counter:
      return latency_kernel<LatencyOp::counter>;
    case LatencyOp::window_put:
    case LatencyOp::window_signal:
      return window_kernel_of<kNewerTests>(op);
    case LatencyOp::get:
      break;  // has a kernel of its own
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_latency(const LatencyArgs& args, cudaStream_t stream) {
  kernel_of(args.op)<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t load_latency_kernels() {
  for (const LatencyOp op : {LatencyOp::put, LatencyOp::value, LatencyOp::signal, LatencyOp::flush,
                             LatencyOp::counter, LatencyOp::window_put, LatencyOp::window_signal}) {
    if (kernel_of(op) == nullptr) continue;
    cudaFuncAttributes ignored;
    const cudaError_t error = cudaFuncGetAttributes(&ignored, kernel_of(op));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace twinpath::gda_perf
