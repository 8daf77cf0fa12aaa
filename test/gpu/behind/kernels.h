#pragma once
// Kernels, launched from host code that knows no CUDA syntax.  Elements are floats whose values
// and sums are whole numbers below 2^24: sums are exact in any order.
#include <cuda_runtime.h>

#include <cstddef>

namespace twinpath::behind {

// What rank `rank` puts in, in round `round`.
void launch_fill(float* to, std::size_t count, int round, int rank, cudaStream_t stream);
// Adds to *wrong the elements that are not the sum over ranks 0 to `ranks`-1.
void launch_count_wrong(const float* from, std::size_t count, int round, int ranks,
                        unsigned long long* wrong, cudaStream_t stream);
// The sum that element `i` must be.
float expected(std::size_t i, int round, int ranks);

// *to = value, by one thread.
void launch_store(unsigned* to, unsigned value, cudaStream_t stream);

// The same by one of kLazyKernels kernels, `which`, that nothing else uses.
inline constexpr int kLazyKernels = 512;
void launch_lazy(int which, unsigned* to, unsigned value, cudaStream_t stream);

}  // namespace twinpath::behind
