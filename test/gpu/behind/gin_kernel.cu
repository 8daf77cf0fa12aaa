#include "test/gpu/behind/gin_kernel.h"

namespace twinpath::behind {
namespace {

constexpr unsigned kSignal = 0;

__global__ void exchange_kernel(const __grid_constant__ GinExchange x) {
  const float* own = reinterpret_cast<const float*>(x.memory + x.send_at);
  if (threadIdx.x == 0) {
    const ncclGin gin(x.comm, 0);
    const ncclTeam world = ncclTeamWorld(x.comm);
    for (int step = 1; step < x.ranks; ++step) {
      const int peer = (x.rank + step) % x.ranks;
      gin.put(world, peer, x.window, x.places_at + static_cast<std::size_t>(x.rank) * x.place_bytes,
              x.window, x.send_at, x.count * sizeof(float), ncclGin_SignalInc{kSignal});
    }
    gin.waitSignal(ncclCoopThread{}, kSignal, x.signals);
    // The next round fills the source again.
    gin.flush(ncclCoopThread{});
  }
  __syncthreads();
  for (std::size_t i = threadIdx.x; i < x.count; i += blockDim.x) {
    float sum = own[i];
    for (int r = 0; r < x.ranks; ++r) {
      if (r == x.rank) continue;
      const auto* place = reinterpret_cast<const volatile float*>(
          x.memory + x.places_at + static_cast<std::size_t>(r) * x.place_bytes);
      sum += place[i];
    }
    x.sums[i] = sum;
  }
}

}  // namespace

cudaError_t load_exchange() {
  cudaFuncAttributes unused;
  return cudaFuncGetAttributes(&unused, exchange_kernel);
}

void launch_exchange(const GinExchange& x, cudaStream_t stream) {
  exchange_kernel<<<1, 512, 0, stream>>>(x);
}

}  // namespace twinpath::behind
