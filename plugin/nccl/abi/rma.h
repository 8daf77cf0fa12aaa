#pragma once
// ncclRma_vN_t: what NCCL looks up for puts and signals that the host asks for (RMA), and for its
// own proxy of kernels that communicate (GIN type PROXY), which goes the same way.  v14 is that of
// NCCL 2.30.7, v15 that of 2.31, v16 that of 2.32.
//
// v13 is left out: releases that know it know v14, too, but for 2.30.3 and 2.30.4, which use no
// plugin's RMA.
#include "plugin/nccl/abi/gin.h"

namespace twinpath::abi {

// The type of network whose kernels hand requests to NCCL's thread.
inline constexpr ncclNetDeviceType kNetDeviceGinProxy{2};
inline constexpr int kGinProxyVersion = 100;

// NCCL_NET_SIGNAL_OP_INC and _ADD.
inline constexpr std::uint32_t kSignalInc = 1;
inline constexpr std::uint32_t kSignalAdd = 2;

struct ncclRmaConfig_v14_t {  // also v15, v16
  int nContexts;
  int trafficClass;
  int rankStride;
};

struct ncclRma_v14_t {
  static constexpr int kVersion = 14;
  const char* name;
  ncclResult_t (*init)(void** ctx, std::uint64_t commId, ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, ncclRmaConfig_v14_t* config, void** rmaCtx);
  ncclResult_t (*regMrSym)(void* collComm, void* data, std::size_t size, int type,
                           std::uint64_t mrFlags, void** mhandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, std::size_t size, int type,
                                 std::uint64_t offset, int fd, std::uint64_t mrFlags,
                                 void** mhandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* rmaCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                       std::size_t size, std::uint64_t dstOff, void* dstMhandle, std::uint32_t rank,
                       void** request);
  ncclResult_t (*iputSignal)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                             std::size_t size, std::uint64_t dstOff, void* dstMhandle,
                             std::uint32_t rank, std::uint64_t signalOff, void* signalMhandle,
                             std::uint64_t signalValue, std::uint32_t signalOp, bool isStrongSignal,
                             void** request);
  ncclResult_t (*iget)(void* rmaCtx, int context, std::uint64_t remoteOff, void* remoteMhandle,
                       std::size_t size, std::uint64_t localOff, void* localMhandle,
                       std::uint32_t rank, void** request);
  ncclResult_t (*iflush)(void* rmaCtx, int context, void* mhandle, std::uint32_t rank,
                         void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*rmaProgress)(void* rmaCtx);
  ncclResult_t (*queryLastError)(void* rmaCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
};

// Puts and gets got a word of hints; nothing else changed.
struct ncclRma_v15_t {
  static constexpr int kVersion = 15;
  const char* name;
  ncclResult_t (*init)(void** ctx, std::uint64_t commId, ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, ncclRmaConfig_v14_t* config, void** rmaCtx);
  ncclResult_t (*regMrSym)(void* collComm, void* data, std::size_t size, int type,
                           std::uint64_t mrFlags, void** mhandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, std::size_t size, int type,
                                 std::uint64_t offset, int fd, std::uint64_t mrFlags,
                                 void** mhandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* rmaCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                       std::size_t size, std::uint64_t dstOff, void* dstMhandle, std::uint32_t rank,
                       std::uint32_t optFlags, void** request);
  ncclResult_t (*iputSignal)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                             std::size_t size, std::uint64_t dstOff, void* dstMhandle,
                             std::uint32_t rank, std::uint64_t signalOff, void* signalMhandle,
                             std::uint64_t signalValue, std::uint32_t signalOp, bool isStrongSignal,
                             std::uint32_t optFlags, void** request);
  ncclResult_t (*iget)(void* rmaCtx, int context, std::uint64_t remoteOff, void* remoteMhandle,
                       std::size_t size, std::uint64_t localOff, void* localMhandle,
                       std::uint32_t rank, std::uint32_t optFlags, void** request);
  ncclResult_t (*iflush)(void* rmaCtx, int context, void* mhandle, std::uint32_t rank,
                         void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*rmaProgress)(void* rmaCtx);
  ncclResult_t (*queryLastError)(void* rmaCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
  // Not in the released table.  Some states of NCCL's sources have one more entry, which may be
  // null; they must not read beyond ours.
  void* notReleased;
};

struct ncclRmaProperties_v16_t {
  // Any signal that arrives, from any peer, makes visible what was put here by any peer before.
  bool flushesAllPutsOnAnySignal;
};

// One more question than v15, in the middle.
struct ncclRma_v16_t {
  static constexpr int kVersion = 16;
  const char* name;
  ncclResult_t (*init)(void** ctx, std::uint64_t commId, ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*getRmaProperties)(void* collComm, ncclRmaProperties_v16_t* props);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, ncclRmaConfig_v14_t* config, void** rmaCtx);
  ncclResult_t (*regMrSym)(void* collComm, void* data, std::size_t size, int type,
                           std::uint64_t mrFlags, void** mhandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, std::size_t size, int type,
                                 std::uint64_t offset, int fd, std::uint64_t mrFlags,
                                 void** mhandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* rmaCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                       std::size_t size, std::uint64_t dstOff, void* dstMhandle, std::uint32_t rank,
                       std::uint32_t optFlags, void** request);
  ncclResult_t (*iputSignal)(void* rmaCtx, int context, std::uint64_t srcOff, void* srcMhandle,
                             std::size_t size, std::uint64_t dstOff, void* dstMhandle,
                             std::uint32_t rank, std::uint64_t signalOff, void* signalMhandle,
                             std::uint64_t signalValue, std::uint32_t signalOp, bool isStrongSignal,
                             std::uint32_t optFlags, void** request);
  ncclResult_t (*iget)(void* rmaCtx, int context, std::uint64_t remoteOff, void* remoteMhandle,
                       std::size_t size, std::uint64_t localOff, void* localMhandle,
                       std::uint32_t rank, std::uint32_t optFlags, void** request);
  ncclResult_t (*iflush)(void* rmaCtx, int context, void* mhandle, std::uint32_t rank,
                         void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*rmaProgress)(void* rmaCtx);
  ncclResult_t (*queryLastError)(void* rmaCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
  // Not in the released table.  Some states of NCCL's sources have one more entry, which may be
  // null; they must not read beyond ours.
  void* notReleased;
};

}  // namespace twinpath::abi
