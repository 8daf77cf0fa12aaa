#include <utility>

#include "test/gpu/behind/kernels.h"

namespace twinpath::behind {
namespace {

__host__ __device__ float element(std::size_t i, int round, int rank) {
  return static_cast<float>(
      (i * 7 + static_cast<std::size_t>(round) * 31 + static_cast<std::size_t>(rank) * 13) % 1009);
}

__host__ __device__ float sum(std::size_t i, int round, int ranks) {
  float out = 0;
  for (int r = 0; r < ranks; ++r) out += element(i, round, r);
  return out;
}

__global__ void fill(float* to, std::size_t count, int round, int rank) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    to[i] = element(i, round, rank);
  }
}

__global__ void count_wrong(const float* from, std::size_t count, int round, int ranks,
                            unsigned long long* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    // Not "!=" alone: poison is not a number.
    if (!(from[i] == sum(i, round, ranks))) atomicAdd_system(wrong, 1ULL);
  }
}

__global__ void store(unsigned* to, unsigned value) { *to = value; }

template <int kWhich>
__global__ void lazy(unsigned* to, unsigned value) {
  // Each its own kernel: lazy loading goes by kernels.
  *to = (value ^ static_cast<unsigned>(kWhich)) ^ static_cast<unsigned>(kWhich);
}

using Launcher = void (*)(unsigned*, unsigned, cudaStream_t);

template <int kWhich>
void launch_one(unsigned* to, unsigned value, cudaStream_t stream) {
  lazy<kWhich><<<1, 1, 0, stream>>>(to, value);
}

template <int... kWhich>
Launcher launcher(int which, std::integer_sequence<int, kWhich...>) {
  static constexpr Launcher kAll[] = {launch_one<kWhich>...};
  return kAll[which];
}

constexpr unsigned kThreads = 256;

unsigned blocks(std::size_t count) {
  const std::size_t wanted = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(wanted < 64 ? wanted : 64);
}

}  // namespace

void launch_fill(float* to, std::size_t count, int round, int rank, cudaStream_t stream) {
  fill<<<blocks(count), kThreads, 0, stream>>>(to, count, round, rank);
}

void launch_count_wrong(const float* from, std::size_t count, int round, int ranks,
                        unsigned long long* wrong, cudaStream_t stream) {
  count_wrong<<<blocks(count), kThreads, 0, stream>>>(from, count, round, ranks, wrong);
}

float expected(std::size_t i, int round, int ranks) { return sum(i, round, ranks); }

void launch_store(unsigned* to, unsigned value, cudaStream_t stream) {
  store<<<1, 1, 0, stream>>>(to, value);
}

void launch_lazy(int which, unsigned* to, unsigned value, cudaStream_t stream) {
  launcher(which, std::make_integer_sequence<int, kLazyKernels>{})(to, value, stream);
}

}  // namespace twinpath::behind
