// Before and after a measurement: patterns, signals back to zero, waiting for the last signals.
#include "tools/common/pattern.h"
#include "tools/gda_perf/wait.cuh"

namespace twinpath::gda_perf {
namespace {

constexpr int kBlocks = 256, kThreads = 256;

__global__ void fill_kernel(std::uint64_t* data, std::size_t words, std::uint64_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step)
    data[i] = tools::pattern_word(seed, i);
}

__global__ void verify_kernel(const __grid_constant__ VerifyArgs a) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  unsigned long long wrong = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < a.words; i += step) {
    const bool edge = i == 0 || i + 1 == a.words;
    const std::uint64_t want = a.stamped && edge ? a.stamp : tools::pattern_word(a.seed, i);
    wrong += a.data[i] != want ? 1 : 0;
  }
  if (wrong != 0) atomicAdd(a.wrong, wrong);
}

__global__ void reset_kernel(const __grid_constant__ Side side) {
  for (int c = 0; c < side.contexts; ++c) {
    const ncclGin gin(side.comm, c);
    for (unsigned s = threadIdx.x; s < kSignalsPerHalf; s += blockDim.x)
      gin.resetSignal(own_signal(side, s));
    if (side.half == 0 && threadIdx.x == 0) gin.resetCounter(0);
  }
  if (threadIdx.x == 0) *side.word = 0;
}

__global__ void await_kernel(const __grid_constant__ AwaitArgs a) {
  Outcome out{};
  Wait wait{a.wait_ns, out};
  const unsigned own = own_signal(a.side, kMainSignal);
  mark_start(out);
  for (int c = 0; c < a.side.contexts; ++c) {
    const ncclGin gin(a.side.comm, c);
    if (!(a.counters ? wait.counter(gin, 0, a.expected[c], a.expected[c])
                     : wait.signal(gin, own, a.expected[c], a.expected[c])))
      break;
    out.wrong += (a.counters ? gin.readCounter(0) : gin.readSignal(own)) - a.expected[c];
  }
  mark_end(out);
  *a.outcome = out;
}

}  // namespace

cudaError_t launch_fill(std::uint64_t* data, std::size_t words, std::uint64_t seed,
                        cudaStream_t stream) {
  fill_kernel<<<kBlocks, kThreads, 0, stream>>>(data, words, seed);
  return cudaGetLastError();
}

cudaError_t launch_verify(const VerifyArgs& args, cudaStream_t stream) {
  verify_kernel<<<kBlocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_reset(const Side& side, cudaStream_t stream) {
  reset_kernel<<<1, 32, 0, stream>>>(side);
  return cudaGetLastError();
}

cudaError_t launch_await(const AwaitArgs& args, cudaStream_t stream) {
  await_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t load_data_kernels() {
  cudaFuncAttributes ignored;
  cudaError_t error = cudaFuncGetAttributes(&ignored, fill_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, verify_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, reset_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, await_kernel);
  return error;
}

}  // namespace twinpath::gda_perf
