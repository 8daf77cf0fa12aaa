#pragma once
// The layout of RMA's structs, checked at compile time against the offsets of NCCL 2.30.7 (v14),
// 2.31.2 (v15) and 2.32.3 (v16) on 64-bit machines.
#include "plugin/nccl/abi/gin_layout.h"
#include "plugin/nccl/abi/rma.h"

#define TP_ABI_AT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "::" #member)
#define TP_ABI_SIZE(type, size) static_assert(sizeof(type) == (size), #type)

namespace twinpath::abi {

TP_ABI_AT(ncclRma_v14_t, name, 0);
TP_ABI_AT(ncclRma_v14_t, init, 8);
TP_ABI_AT(ncclRma_v14_t, devices, 16);
TP_ABI_AT(ncclRma_v14_t, getProperties, 24);
TP_ABI_AT(ncclRma_v14_t, listen, 32);
TP_ABI_AT(ncclRma_v14_t, connect, 40);
TP_ABI_AT(ncclRma_v14_t, createContext, 48);
TP_ABI_AT(ncclRma_v14_t, regMrSym, 56);
TP_ABI_AT(ncclRma_v14_t, regMrSymDmaBuf, 64);
TP_ABI_AT(ncclRma_v14_t, deregMrSym, 72);
TP_ABI_AT(ncclRma_v14_t, destroyContext, 80);
TP_ABI_AT(ncclRma_v14_t, closeColl, 88);
TP_ABI_AT(ncclRma_v14_t, closeListen, 96);
TP_ABI_AT(ncclRma_v14_t, iput, 104);
TP_ABI_AT(ncclRma_v14_t, iputSignal, 112);
TP_ABI_AT(ncclRma_v14_t, iget, 120);
TP_ABI_AT(ncclRma_v14_t, iflush, 128);
TP_ABI_AT(ncclRma_v14_t, test, 136);
TP_ABI_AT(ncclRma_v14_t, rmaProgress, 144);
TP_ABI_AT(ncclRma_v14_t, queryLastError, 152);
TP_ABI_AT(ncclRma_v14_t, finalize, 160);
TP_ABI_SIZE(ncclRma_v14_t, 168);

TP_ABI_AT(ncclRma_v15_t, name, 0);
TP_ABI_AT(ncclRma_v15_t, init, 8);
TP_ABI_AT(ncclRma_v15_t, devices, 16);
TP_ABI_AT(ncclRma_v15_t, getProperties, 24);
TP_ABI_AT(ncclRma_v15_t, listen, 32);
TP_ABI_AT(ncclRma_v15_t, connect, 40);
TP_ABI_AT(ncclRma_v15_t, createContext, 48);
TP_ABI_AT(ncclRma_v15_t, regMrSym, 56);
TP_ABI_AT(ncclRma_v15_t, regMrSymDmaBuf, 64);
TP_ABI_AT(ncclRma_v15_t, deregMrSym, 72);
TP_ABI_AT(ncclRma_v15_t, destroyContext, 80);
TP_ABI_AT(ncclRma_v15_t, closeColl, 88);
TP_ABI_AT(ncclRma_v15_t, closeListen, 96);
TP_ABI_AT(ncclRma_v15_t, iput, 104);
TP_ABI_AT(ncclRma_v15_t, iputSignal, 112);
TP_ABI_AT(ncclRma_v15_t, iget, 120);
TP_ABI_AT(ncclRma_v15_t, iflush, 128);
TP_ABI_AT(ncclRma_v15_t, test, 136);
TP_ABI_AT(ncclRma_v15_t, rmaProgress, 144);
TP_ABI_AT(ncclRma_v15_t, queryLastError, 152);
TP_ABI_AT(ncclRma_v15_t, finalize, 160);
TP_ABI_AT(ncclRma_v15_t, notReleased, 168);  // the size of the released table

TP_ABI_SIZE(ncclRmaProperties_v16_t, 1);
TP_ABI_AT(ncclRma_v16_t, name, 0);
TP_ABI_AT(ncclRma_v16_t, init, 8);
TP_ABI_AT(ncclRma_v16_t, devices, 16);
TP_ABI_AT(ncclRma_v16_t, getRmaProperties, 24);
TP_ABI_AT(ncclRma_v16_t, getProperties, 32);
TP_ABI_AT(ncclRma_v16_t, listen, 40);
TP_ABI_AT(ncclRma_v16_t, connect, 48);
TP_ABI_AT(ncclRma_v16_t, createContext, 56);
TP_ABI_AT(ncclRma_v16_t, regMrSym, 64);
TP_ABI_AT(ncclRma_v16_t, regMrSymDmaBuf, 72);
TP_ABI_AT(ncclRma_v16_t, deregMrSym, 80);
TP_ABI_AT(ncclRma_v16_t, destroyContext, 88);
TP_ABI_AT(ncclRma_v16_t, closeColl, 96);
TP_ABI_AT(ncclRma_v16_t, closeListen, 104);
TP_ABI_AT(ncclRma_v16_t, iput, 112);
TP_ABI_AT(ncclRma_v16_t, iputSignal, 120);
TP_ABI_AT(ncclRma_v16_t, iget, 128);
TP_ABI_AT(ncclRma_v16_t, iflush, 136);
TP_ABI_AT(ncclRma_v16_t, test, 144);
TP_ABI_AT(ncclRma_v16_t, rmaProgress, 152);
TP_ABI_AT(ncclRma_v16_t, queryLastError, 160);
TP_ABI_AT(ncclRma_v16_t, finalize, 168);
TP_ABI_AT(ncclRma_v16_t, notReleased, 176);  // the size of the released table

TP_ABI_AT(ncclRmaConfig_v14_t, nContexts, 0);
TP_ABI_AT(ncclRmaConfig_v14_t, trafficClass, 4);
TP_ABI_AT(ncclRmaConfig_v14_t, rankStride, 8);
TP_ABI_SIZE(ncclRmaConfig_v14_t, 12);

}  // namespace twinpath::abi

#undef TP_ABI_AT
#undef TP_ABI_SIZE
