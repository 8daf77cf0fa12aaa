#pragma once
// Memory of GPUs as the model reaches it: copies on a stream of its own, beside kernels that run,
// done when the call returns (some 10 us).  Needs a driver that the program has loaded; without one
// every call fails.
//
// Threads: any; one lock.
#include <cstddef>
#include <cstdint>

namespace twinpath::softhca::mlx5 {

// False where `address` is not memory of a GPU, or the driver refuses.
bool read_gpu_memory(std::uint64_t address, void* to, std::size_t bytes);
// The last `after` bytes become visible after the others.
bool write_gpu_memory(std::uint64_t address, const void* from, std::size_t bytes,
                      std::size_t after = 0);

}  // namespace twinpath::softhca::mlx5
