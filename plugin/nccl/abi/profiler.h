#pragma once
// NCCL's profiler plugin ABI, versions 4 (NCCL 2.27), 5 (2.28) and 6 (2.29 on).
// Also what networks tell any profiler of their own events.
// Source: NCCL's src/include/plugin/profiler/profiler_v4.h to _v6.h, the same in every release from
// 2.27.3, 2.28.3 and 2.29.2 to 2.30.7.  No version has events for us, so what describes one has no
// declaration here: the pointers to it are void.
#include <cstddef>
#include <cstdint>

#include "plugin/nccl/abi/types.h"

namespace twinpath::abi {

// From init on: v5 and v6 have the id in front of the mask, v4 behind the name.
struct ncclProfiler_v4_t {
  static constexpr int kVersion = 4;
  const char* name;
  // `mask` gets one bit for each kind of event that is wanted, for all communicators of the
  // process.
  ncclResult_t (*init)(void** context, int* mask, const char* commName, std::uint64_t commHash,
                       int nNodes, int nRanks, int rank, ncclDebugLogger_t log);
  ncclResult_t (*startEvent)(void* context, void** event, void* description);
  ncclResult_t (*stopEvent)(void* event);
  ncclResult_t (*recordEventState)(void* event, int state, void* more);
  ncclResult_t (*finalize)(void* context);
};

struct ncclProfiler_v5_t {
  static constexpr int kVersion = 5;
  const char* name;
  ncclResult_t (*init)(void** context, std::uint64_t commId, int* mask, const char* commName,
                       int nNodes, int nRanks, int rank, ncclDebugLogger_t log);
  ncclResult_t (*startEvent)(void* context, void** event, void* description);
  ncclResult_t (*stopEvent)(void* event);
  ncclResult_t (*recordEventState)(void* event, int state, void* more);
  ncclResult_t (*finalize)(void* context);
};

// v6 added kinds of events only.
struct ncclProfiler_v6_t : ncclProfiler_v5_t {
  static constexpr int kVersion = 6;
};

static_assert(sizeof(ncclProfiler_v4_t) == 48 && sizeof(ncclProfiler_v5_t) == 48 &&
              sizeof(ncclProfiler_v6_t) == 48);
static_assert(offsetof(ncclProfiler_v4_t, init) == 8 && offsetof(ncclProfiler_v5_t, init) == 8);
static_assert(offsetof(ncclProfiler_v4_t, startEvent) == 16 &&
              offsetof(ncclProfiler_v5_t, startEvent) == 16);
static_assert(offsetof(ncclProfiler_v4_t, stopEvent) == 24 &&
              offsetof(ncclProfiler_v5_t, stopEvent) == 24);
static_assert(offsetof(ncclProfiler_v4_t, recordEventState) == 32 &&
              offsetof(ncclProfiler_v5_t, recordEventState) == 32);
static_assert(offsetof(ncclProfiler_v4_t, finalize) == 40 &&
              offsetof(ncclProfiler_v5_t, finalize) == 40);

// The callback that a net table's init gets (types.h) starts and stops events below NCCL's own.
inline constexpr int kNetEventStart = 0;  // `parent`: the handle that came with the operation
inline constexpr int kNetEventStop = 1;   // parent, id and description unused
// What a start's description is: kind of network and version.  From nccl_profiler.h, net_ib_v1.h.
inline constexpr std::int64_t kNetEventIbV1 = 1 << 16 | 1;

struct ncclProfilerNetIbDescr_v1_t {
  std::uint8_t type = 1;  // a queue pair's work
  struct {
    int device = 0;
    std::uint64_t wr_id = 0;
    int opcode = 0;  // ibv_wr_opcode
    int qpNum = 0;
    std::size_t length = 0;
  } qp;
};
static_assert(sizeof(ncclProfilerNetIbDescr_v1_t) == 40 &&
              offsetof(ncclProfilerNetIbDescr_v1_t, qp) == 8);
static_assert(offsetof(decltype(ncclProfilerNetIbDescr_v1_t::qp), wr_id) == 8 &&
              offsetof(decltype(ncclProfilerNetIbDescr_v1_t::qp), opcode) == 16 &&
              offsetof(decltype(ncclProfilerNetIbDescr_v1_t::qp), qpNum) == 20 &&
              offsetof(decltype(ncclProfilerNetIbDescr_v1_t::qp), length) == 24);

}  // namespace twinpath::abi
