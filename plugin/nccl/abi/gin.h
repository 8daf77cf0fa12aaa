#pragma once
// ncclGin_vN_t: what NCCL looks up for communication that kernels start (GIN).  v11 is that of
// NCCL 2.28.7 to 2.30.4, v14 that of 2.30.7 and later.
//
// v12 and v13 are left out on purpose: every release that knows them knows v11 or v14, too, and
// 2.30.7 takes a v13 for an RMA plugin as well.
#include "plugin/nccl/abi/properties.h"

namespace twinpath::abi {

// The type of network whose queues kernels fill as they would mlx5's.
inline constexpr ncclNetDeviceType kNetDeviceGinGdaki{3};
// NCCL_GIN_GDAKI_VERSION of the device headers: 2.28 and 2.29, and 2.30.
inline constexpr int kGdakiVersion_2_28 = 100;
inline constexpr int kGdakiVersion_2_30 = 200;

inline constexpr std::uint64_t kMrForceStrictOrder = 1;  // NCCL_NET_MR_FLAG_FORCE_SO
// NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET, which newer releases set for signals of their own proxies.
inline constexpr std::uint64_t kMrSignalNeverReset = 1 << 1;

struct ncclGin_v11_t {
  using Properties = ncclNetProperties_v11_t;
  static constexpr int kVersion = 11;
  const char* name;
  ncclResult_t (*init)(void** ctx, std::uint64_t commId, ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, int nSignals, int nCounters, void** ginCtx,
                                ncclNetDeviceHandle_t** devHandle);
  ncclResult_t (*regMrSym)(void* collComm, void* data, std::size_t size, int type,
                           std::uint64_t mrFlags, void** mhandle, void** ginHandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, std::size_t size, int type,
                                 std::uint64_t offset, int fd, std::uint64_t mrFlags,
                                 void** mhandle, void** ginHandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* ginCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* collComm, std::uint64_t srcOff, void* srcMhandle, std::size_t size,
                       std::uint64_t dstOff, void* dstMhandle, std::uint32_t rank, void** request);
  ncclResult_t (*iputSignal)(void* collComm, std::uint64_t srcOff, void* srcMhandle,
                             std::size_t size, std::uint64_t dstOff, void* dstMhandle,
                             std::uint32_t rank, std::uint64_t signalOff, void* signalMhandle,
                             std::uint64_t signalValue, std::uint32_t signalOp, void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*ginProgress)(void* collComm);
  ncclResult_t (*queryLastError)(void* ginCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
};

struct ncclGinProperties_v14_t {
  bool supportsStrongSignals;
  bool supportsVASignals;  // signals at any address of a window
};

struct ncclGinConfig_v14_t {
  int nSignals;
  int nCounters;
  int nContexts;
  int queueDepth;
  int trafficClass;
  int backendVersion;  // which device structures the kernels were compiled for
  int rankStride;
};

struct ncclGin_v14_t {
  using Properties = ncclNetProperties_v12_t;
  static constexpr int kVersion = 14;
  const char* name;
  ncclResult_t (*init)(void** ctx, std::uint64_t commId, ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*getGinProperties)(ncclGinProperties_v14_t* ginProps);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, ncclGinConfig_v14_t* config, void** ginCtx,
                                ncclNetDeviceHandle_t** devHandle);
  ncclResult_t (*regMrSym)(void* collComm, void* data, std::size_t size, int type,
                           std::uint64_t mrFlags, void** mhandle, void** ginHandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, std::size_t size, int type,
                                 std::uint64_t offset, int fd, std::uint64_t mrFlags,
                                 void** mhandle, void** ginHandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* ginCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*ginProgress)(void* ginCtx);
  ncclResult_t (*queryLastError)(void* ginCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
};

}  // namespace twinpath::abi
