#pragma once
// What all versions of NCCL's net plugin ABI share: result codes, limits, callbacks.
//
// These are our own declarations, written from the layout (design notes, section 2), so that the
// plugin builds without NCCL.  The names are NCCL's, to be recognised in its sources; the
// namespace keeps them apart from nccl.h in programs that include both.
#include <cstddef>
#include <cstdint>

#include "plugin/base/limits.h"
#include "plugin/base/log.h"

namespace twinpath::abi {

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,  // never returned by a plugin
};

inline constexpr int kPtrHost = 1;
inline constexpr int kPtrCuda = 2;
inline constexpr int kPtrDmaBuf = 4;

inline constexpr std::size_t kHandleMaxSize = 128;           // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kMaxNetRequests = 32;                   // NCCL_NET_MAX_REQUESTS
inline constexpr std::size_t kMaxNetSizeBytes = 1ULL << 40;  // NCCL_MAX_NET_SIZE_BYTES
inline constexpr int kUndefined = -1;  // traffic class, rail and plane, attributes

// On entry of irecv `*request` may hold this: the caller does not need the completion.
inline constexpr std::uintptr_t kOptionalRecvCompletion = 0x1;

static_assert(kHandleMaxSize == kHandleBytes);
static_assert(kMaxNetRequests == kMaxRequests);

// The logger's third argument is called a file in NCCL and holds a function name.
using ncclDebugLogger_t = LogSink;
using ncclProfilerCallback_t = ncclResult_t (*)(void** event, int type, void* parent,
                                                std::int64_t plugin_id, void* data);

enum ncclNetDeviceType : int { kNetDeviceHost = 0 };

// Describes a network queue that GPU code drives; a host plugin never makes one.
struct ncclNetDeviceHandle_t {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void* handle;
  std::size_t size;
  int needsProxyProgress;
};

struct ncclNetCommConfig_t {  // v10 to v12
  int trafficClass;
};

struct ncclNetCommAttr_t {
  std::int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
};

struct ncclNetAttr_t {  // v11, v12; hints only
  ncclNetCommAttr_t sendCommAttr, recvCommAttr;
  std::uint32_t op, algo, proto;  // bits 1 << enum; all ones: undefined
};

template <int Max>
struct ncclNetVDeviceProps {
  static constexpr int kMaxDevices = Max;
  int ndevs;
  int devs[Max];
};
using ncclNetVDeviceProps_v9_t = ncclNetVDeviceProps<4>;  // also v10, v11
using ncclNetVDeviceProps_v12_t = ncclNetVDeviceProps<8>;

}  // namespace twinpath::abi
