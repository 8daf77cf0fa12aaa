#pragma once
// Freeing CUDA memory waits for kernels: for all of that GPU, and of GPUs that reach the memory.
// A teardown must not depend on them: the kernel waited for may be one that only the caller's next
// step lets go (NCCL's abort closes the communicators of a process one after the other).
//
// Threads: any that sets up or tears down.
#include <cstdint>
#include <functional>

namespace twinpath::gda {

// Long enough for kernels that are being let go.
inline constexpr std::int64_t kFreeLimit = 3'000'000'000;

// Runs `free` in a thread of its own.  False: that takes longer than `limit_ns` and goes on behind
// the caller (the plugin stays loaded, see plugin/nccl/meson.build).  `free` must own what it
// touches; it is destroyed in that thread.
bool free_behind(std::function<void()> free, std::int64_t limit_ns = kFreeLimit);

}  // namespace twinpath::gda
