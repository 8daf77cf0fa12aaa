#pragma once
// The software HCA as a library of its own: what it takes from the plugin or tool that opens it
// (SoftHost), and the one C function by which both meet.
//
// Both are of one build, which is checked: so C++ types cross, memory that one allocates the other
// frees (both have the process's malloc), and objects of virtual classes are each other's.  What a
// process must have once is the host's, and the library has none of it although it contains the
// code of plugin/base:
//   - the log: its sink, and the count of warnings (shared_log.h);
//   - copies of GPU memory: the CUDA driver's table, a copy thread for each GPU, the process that
//     makes copies, exported dma-bufs.  plugin/gpu is not linked into the library at all.
//   - settings: the host reads the environment and hands over the result (SoftHca::load).
// The adapter itself (Hca::instance) is once in the library, which the loader opens once.  The rest
// of plugin/base that the library uses has no state but the page size, which is the machine's.
//
// Threads: any.
#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/base/shared_log.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/soft_hca.h"
#include "plugin/gpu/dmabuf.h"
#include "plugin/gpu/engine.h"

namespace twinpath {

// X(function of twinpath::gpu)
#define TP_SOFT_HOST_GPU(X) \
  X(inspect_pointer)        \
  X(check_range)            \
  X(export_allocation)      \
  X(import_allocation)      \
  X(import_local)           \
  X(keep_in_reach)          \
  X(prepare_copies)         \
  X(submit_copy)            \
  X(copied_elsewhere)       \
  X(find_dmabuf)

struct SoftHost {
  const char* build = nullptr;  // built_from(): version and commit
  LogState* log = nullptr;
#define TP_SOFT_HOST_MEMBER(name) decltype(&gpu::name) name = nullptr;
  TP_SOFT_HOST_GPU(TP_SOFT_HOST_MEMBER)
#undef TP_SOFT_HOST_MEMBER
};

// Sizes of what crosses: they differ between builds of one commit with other options or compilers.
inline constexpr std::array<std::uint32_t, 8> kSoftHcaSizes{
    sizeof(SoftHost), sizeof(SoftHca),       sizeof(Verbs),       sizeof(Mlx5),
    sizeof(Config),   sizeof(soft::Adapter), sizeof(soft::Place), sizeof(gpu::WordUpdate)};

// `sizes`: `count` of them, the host's.  Null: `why` (static) says what does not fit, and nothing
// has been taken.  `host` outlives the process's last use of the result.
using SoftHcaEntry = const SoftHca*(const SoftHost* host, const std::uint32_t* sizes,
                                    std::size_t count, const char** why);
// Has a number for a change of SoftHcaEntry itself.
inline constexpr const char* kSoftHcaEntry = "twinpath_softhca_v1";
inline constexpr const char* kSoftHcaLibrary = "libtwinpath-softhca.so";

// What this process gives.
const SoftHost& soft_host();

}  // namespace twinpath
