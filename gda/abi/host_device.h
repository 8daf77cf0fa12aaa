#pragma once
// Code that both a kernel and the CPU run: what a WQE looks like must be written once.  Without
// nvcc the mark is empty, so no CUDA header is needed to build or test any of it.
#if defined(__CUDACC__)
#define TWINPATH_HD __host__ __device__
#else
#define TWINPATH_HD
#endif

#include <bit>
#include <cstdint>

namespace twinpath::gda {

static_assert(std::endian::native == std::endian::little, "GPUs and their hosts are little-endian");

// Host order <-> the big-endian order of WQEs, CQEs and keys in device tables.
TWINPATH_HD constexpr std::uint32_t swap32(std::uint32_t v) {
  return (v >> 24) | ((v >> 8) & 0xff00u) | ((v << 8) & 0xff0000u) | (v << 24);
}
TWINPATH_HD constexpr std::uint64_t swap64(std::uint64_t v) {
  return (std::uint64_t{swap32(static_cast<std::uint32_t>(v))} << 32) |
         swap32(static_cast<std::uint32_t>(v >> 32));
}

}  // namespace twinpath::gda
