#pragma once
// The layout of GIN's structs, checked at compile time against the offsets of NCCL 2.28.9 (v11)
// and 2.30.7 (v14) on 64-bit machines.
#include "plugin/nccl/abi/gin.h"
#include "plugin/nccl/abi/layout.h"

#define TP_ABI_AT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "::" #member)
#define TP_ABI_SIZE(type, size) static_assert(sizeof(type) == (size), #type)

namespace twinpath::abi {

TP_ABI_AT(ncclGin_v11_t, name, 0);
TP_ABI_AT(ncclGin_v11_t, init, 8);
TP_ABI_AT(ncclGin_v11_t, devices, 16);
TP_ABI_AT(ncclGin_v11_t, getProperties, 24);
TP_ABI_AT(ncclGin_v11_t, listen, 32);
TP_ABI_AT(ncclGin_v11_t, connect, 40);
TP_ABI_AT(ncclGin_v11_t, createContext, 48);
TP_ABI_AT(ncclGin_v11_t, regMrSym, 56);
TP_ABI_AT(ncclGin_v11_t, regMrSymDmaBuf, 64);
TP_ABI_AT(ncclGin_v11_t, deregMrSym, 72);
TP_ABI_AT(ncclGin_v11_t, destroyContext, 80);
TP_ABI_AT(ncclGin_v11_t, closeColl, 88);
TP_ABI_AT(ncclGin_v11_t, closeListen, 96);
TP_ABI_AT(ncclGin_v11_t, iput, 104);
TP_ABI_AT(ncclGin_v11_t, iputSignal, 112);
TP_ABI_AT(ncclGin_v11_t, test, 120);
TP_ABI_AT(ncclGin_v11_t, ginProgress, 128);
TP_ABI_AT(ncclGin_v11_t, queryLastError, 136);
TP_ABI_AT(ncclGin_v11_t, finalize, 144);
TP_ABI_SIZE(ncclGin_v11_t, 152);

TP_ABI_AT(ncclGin_v14_t, name, 0);
TP_ABI_AT(ncclGin_v14_t, init, 8);
TP_ABI_AT(ncclGin_v14_t, devices, 16);
TP_ABI_AT(ncclGin_v14_t, getGinProperties, 24);
TP_ABI_AT(ncclGin_v14_t, getProperties, 32);
TP_ABI_AT(ncclGin_v14_t, listen, 40);
TP_ABI_AT(ncclGin_v14_t, connect, 48);
TP_ABI_AT(ncclGin_v14_t, createContext, 56);
TP_ABI_AT(ncclGin_v14_t, regMrSym, 64);
TP_ABI_AT(ncclGin_v14_t, regMrSymDmaBuf, 72);
TP_ABI_AT(ncclGin_v14_t, deregMrSym, 80);
TP_ABI_AT(ncclGin_v14_t, destroyContext, 88);
TP_ABI_AT(ncclGin_v14_t, closeColl, 96);
TP_ABI_AT(ncclGin_v14_t, closeListen, 104);
TP_ABI_AT(ncclGin_v14_t, ginProgress, 112);
TP_ABI_AT(ncclGin_v14_t, queryLastError, 120);
TP_ABI_AT(ncclGin_v14_t, finalize, 128);
TP_ABI_SIZE(ncclGin_v14_t, 136);

TP_ABI_SIZE(bool, 1);
TP_ABI_AT(ncclGinProperties_v14_t, supportsStrongSignals, 0);
TP_ABI_AT(ncclGinProperties_v14_t, supportsVASignals, 1);
TP_ABI_SIZE(ncclGinProperties_v14_t, 2);

TP_ABI_AT(ncclGinConfig_v14_t, nSignals, 0);
TP_ABI_AT(ncclGinConfig_v14_t, nCounters, 4);
TP_ABI_AT(ncclGinConfig_v14_t, nContexts, 8);
TP_ABI_AT(ncclGinConfig_v14_t, queueDepth, 12);
TP_ABI_AT(ncclGinConfig_v14_t, trafficClass, 16);
TP_ABI_AT(ncclGinConfig_v14_t, backendVersion, 20);
TP_ABI_AT(ncclGinConfig_v14_t, rankStride, 24);
TP_ABI_SIZE(ncclGinConfig_v14_t, 28);

}  // namespace twinpath::abi

#undef TP_ABI_AT
#undef TP_ABI_SIZE
