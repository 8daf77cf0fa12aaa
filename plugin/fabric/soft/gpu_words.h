#pragma once
// Memory of GPUs as the model of an mlx5 adapter reaches it for queues that lie there: small copies
// by the copy engines (plugin/gpu), done when the call returns (some 7 us).
//
// Only what is held is known: asking the driver what an address is may wait for kernels, which wait
// for the model.
//
// Threads: any.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace twinpath::soft {

// Keeps [address, address + bytes) within reach while the result lives; null where it is no memory
// of a GPU.
std::shared_ptr<void> hold_gpu_memory(std::uint64_t address, std::size_t bytes);

// False where `address` is not held, or the copy fails.
bool read_gpu_memory(std::uint64_t address, void* to, std::size_t bytes);
// The last `after` bytes become visible after the others.
bool write_gpu_memory(std::uint64_t address, const void* from, std::size_t bytes,
                      std::size_t after);

// What the adapter does that reads its own memory (DUMP): what was on its way to that memory's GPU
// is placed.  0; EAGAIN: not yet, ask again; EACCES: not memory of that key.  Memory of the host
// pushes nothing.
int push_by_reading(ibv_pd* pd, std::uint64_t address, std::uint32_t bytes, std::uint32_t lkey);

}  // namespace twinpath::soft
