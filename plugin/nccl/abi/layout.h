#pragma once
// The layout of every struct of the ABI, checked at compile time against the offsets that NCCL
// 2.17 to 2.30 use on 64-bit machines.
#include "plugin/nccl/abi/net.h"

#define TP_ABI_AT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "::" #member)
#define TP_ABI_SIZE(type, size) static_assert(sizeof(type) == (size), #type)

namespace twinpath::abi {

TP_ABI_SIZE(ncclResult_t, 4);
TP_ABI_SIZE(ncclNetDeviceType, 4);
TP_ABI_SIZE(ncclNetCommConfig_t, 4);
TP_ABI_SIZE(ncclNetVDeviceProps_v9_t, 20);
TP_ABI_AT(ncclNetVDeviceProps_v9_t, devs, 4);
TP_ABI_SIZE(ncclNetVDeviceProps_v12_t, 36);
TP_ABI_AT(ncclNetVDeviceProps_v12_t, devs, 4);

TP_ABI_SIZE(ncclNetDeviceHandle_t, 32);
TP_ABI_AT(ncclNetDeviceHandle_t, netDeviceVersion, 4);
TP_ABI_AT(ncclNetDeviceHandle_t, handle, 8);
TP_ABI_AT(ncclNetDeviceHandle_t, size, 16);
TP_ABI_AT(ncclNetDeviceHandle_t, needsProxyProgress, 24);

TP_ABI_SIZE(ncclNetAttr_t, 44);
TP_ABI_AT(ncclNetAttr_t, sendCommAttr, 0);
TP_ABI_AT(ncclNetAttr_t, recvCommAttr, 16);
TP_ABI_AT(ncclNetAttr_t, op, 32);
TP_ABI_AT(ncclNetAttr_t, algo, 36);
TP_ABI_AT(ncclNetAttr_t, proto, 40);

// The levels of the logger have NCCL's numbers.
static_assert(static_cast<int>(LogLevel::warn) == 2 && static_cast<int>(LogLevel::info) == 3 &&
              static_cast<int>(LogLevel::trace) == 5);

TP_ABI_AT(ncclNetProperties_v6_t, name, 0);
TP_ABI_AT(ncclNetProperties_v6_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v6_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v6_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v6_t, speed, 28);
TP_ABI_AT(ncclNetProperties_v6_t, port, 32);
TP_ABI_AT(ncclNetProperties_v6_t, latency, 36);
TP_ABI_AT(ncclNetProperties_v6_t, maxComms, 40);
TP_ABI_AT(ncclNetProperties_v6_t, maxRecvs, 44);
TP_ABI_SIZE(ncclNetProperties_v6_t, 48);

TP_ABI_AT(ncclNetProperties_v7_t, name, 0);
TP_ABI_AT(ncclNetProperties_v7_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v7_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v7_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v7_t, speed, 28);
TP_ABI_AT(ncclNetProperties_v7_t, port, 32);
TP_ABI_AT(ncclNetProperties_v7_t, latency, 36);
TP_ABI_AT(ncclNetProperties_v7_t, maxComms, 40);
TP_ABI_AT(ncclNetProperties_v7_t, maxRecvs, 44);
TP_ABI_AT(ncclNetProperties_v7_t, netDeviceType, 48);
TP_ABI_AT(ncclNetProperties_v7_t, netDeviceVersion, 52);
TP_ABI_SIZE(ncclNetProperties_v7_t, 56);

TP_ABI_AT(ncclNetProperties_v8_t, name, 0);
TP_ABI_AT(ncclNetProperties_v8_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v8_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v8_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v8_t, regIsGlobal, 28);
TP_ABI_AT(ncclNetProperties_v8_t, speed, 32);
TP_ABI_AT(ncclNetProperties_v8_t, port, 36);
TP_ABI_AT(ncclNetProperties_v8_t, latency, 40);
TP_ABI_AT(ncclNetProperties_v8_t, maxComms, 44);
TP_ABI_AT(ncclNetProperties_v8_t, maxRecvs, 48);
TP_ABI_AT(ncclNetProperties_v8_t, netDeviceType, 52);
TP_ABI_AT(ncclNetProperties_v8_t, netDeviceVersion, 56);
TP_ABI_SIZE(ncclNetProperties_v8_t, 64);

TP_ABI_AT(ncclNetProperties_v9_t, name, 0);
TP_ABI_AT(ncclNetProperties_v9_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v9_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v9_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v9_t, regIsGlobal, 28);
TP_ABI_AT(ncclNetProperties_v9_t, forceFlush, 32);
TP_ABI_AT(ncclNetProperties_v9_t, speed, 36);
TP_ABI_AT(ncclNetProperties_v9_t, port, 40);
TP_ABI_AT(ncclNetProperties_v9_t, latency, 44);
TP_ABI_AT(ncclNetProperties_v9_t, maxComms, 48);
TP_ABI_AT(ncclNetProperties_v9_t, maxRecvs, 52);
TP_ABI_AT(ncclNetProperties_v9_t, netDeviceType, 56);
TP_ABI_AT(ncclNetProperties_v9_t, netDeviceVersion, 60);
TP_ABI_AT(ncclNetProperties_v9_t, vProps, 64);
TP_ABI_AT(ncclNetProperties_v9_t, maxP2pBytes, 88);
TP_ABI_AT(ncclNetProperties_v9_t, maxCollBytes, 96);
TP_ABI_SIZE(ncclNetProperties_v9_t, 104);

TP_ABI_AT(ncclNetProperties_v11_t, name, 0);
TP_ABI_AT(ncclNetProperties_v11_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v11_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v11_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v11_t, regIsGlobal, 28);
TP_ABI_AT(ncclNetProperties_v11_t, forceFlush, 32);
TP_ABI_AT(ncclNetProperties_v11_t, speed, 36);
TP_ABI_AT(ncclNetProperties_v11_t, port, 40);
TP_ABI_AT(ncclNetProperties_v11_t, latency, 44);
TP_ABI_AT(ncclNetProperties_v11_t, maxComms, 48);
TP_ABI_AT(ncclNetProperties_v11_t, maxRecvs, 52);
TP_ABI_AT(ncclNetProperties_v11_t, netDeviceType, 56);
TP_ABI_AT(ncclNetProperties_v11_t, netDeviceVersion, 60);
TP_ABI_AT(ncclNetProperties_v11_t, vProps, 64);
TP_ABI_AT(ncclNetProperties_v11_t, maxP2pBytes, 88);
TP_ABI_AT(ncclNetProperties_v11_t, maxCollBytes, 96);
TP_ABI_AT(ncclNetProperties_v11_t, maxMultiRequestSize, 104);
TP_ABI_SIZE(ncclNetProperties_v11_t, 112);

TP_ABI_AT(ncclNetProperties_v12_t, name, 0);
TP_ABI_AT(ncclNetProperties_v12_t, pciPath, 8);
TP_ABI_AT(ncclNetProperties_v12_t, guid, 16);
TP_ABI_AT(ncclNetProperties_v12_t, ptrSupport, 24);
TP_ABI_AT(ncclNetProperties_v12_t, regIsGlobal, 28);
TP_ABI_AT(ncclNetProperties_v12_t, forceFlush, 32);
TP_ABI_AT(ncclNetProperties_v12_t, speed, 36);
TP_ABI_AT(ncclNetProperties_v12_t, port, 40);
TP_ABI_AT(ncclNetProperties_v12_t, latency, 44);
TP_ABI_AT(ncclNetProperties_v12_t, maxComms, 48);
TP_ABI_AT(ncclNetProperties_v12_t, maxRecvs, 52);
TP_ABI_AT(ncclNetProperties_v12_t, netDeviceType, 56);
TP_ABI_AT(ncclNetProperties_v12_t, netDeviceVersion, 60);
TP_ABI_AT(ncclNetProperties_v12_t, vProps, 64);
TP_ABI_AT(ncclNetProperties_v12_t, maxP2pBytes, 104);
TP_ABI_AT(ncclNetProperties_v12_t, maxCollBytes, 112);
TP_ABI_AT(ncclNetProperties_v12_t, maxMultiRequestSize, 120);
TP_ABI_AT(ncclNetProperties_v12_t, railId, 124);
TP_ABI_AT(ncclNetProperties_v12_t, planeId, 126);
TP_ABI_SIZE(ncclNetProperties_v12_t, 128);

TP_ABI_AT(ncclNet_v6_t, name, 0);
TP_ABI_AT(ncclNet_v6_t, init, 8);
TP_ABI_AT(ncclNet_v6_t, devices, 16);
TP_ABI_AT(ncclNet_v6_t, getProperties, 24);
TP_ABI_AT(ncclNet_v6_t, listen, 32);
TP_ABI_AT(ncclNet_v6_t, connect, 40);
TP_ABI_AT(ncclNet_v6_t, accept, 48);
TP_ABI_AT(ncclNet_v6_t, regMr, 56);
TP_ABI_AT(ncclNet_v6_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v6_t, deregMr, 72);
TP_ABI_AT(ncclNet_v6_t, isend, 80);
TP_ABI_AT(ncclNet_v6_t, irecv, 88);
TP_ABI_AT(ncclNet_v6_t, iflush, 96);
TP_ABI_AT(ncclNet_v6_t, test, 104);
TP_ABI_AT(ncclNet_v6_t, closeSend, 112);
TP_ABI_AT(ncclNet_v6_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v6_t, closeListen, 128);
TP_ABI_SIZE(ncclNet_v6_t, 136);

TP_ABI_AT(ncclNet_v7_t, name, 0);
TP_ABI_AT(ncclNet_v7_t, init, 8);
TP_ABI_AT(ncclNet_v7_t, devices, 16);
TP_ABI_AT(ncclNet_v7_t, getProperties, 24);
TP_ABI_AT(ncclNet_v7_t, listen, 32);
TP_ABI_AT(ncclNet_v7_t, connect, 40);
TP_ABI_AT(ncclNet_v7_t, accept, 48);
TP_ABI_AT(ncclNet_v7_t, regMr, 56);
TP_ABI_AT(ncclNet_v7_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v7_t, deregMr, 72);
TP_ABI_AT(ncclNet_v7_t, isend, 80);
TP_ABI_AT(ncclNet_v7_t, irecv, 88);
TP_ABI_AT(ncclNet_v7_t, iflush, 96);
TP_ABI_AT(ncclNet_v7_t, test, 104);
TP_ABI_AT(ncclNet_v7_t, closeSend, 112);
TP_ABI_AT(ncclNet_v7_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v7_t, closeListen, 128);
TP_ABI_AT(ncclNet_v7_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v7_t, irecvConsumed, 144);
TP_ABI_SIZE(ncclNet_v7_t, 152);

TP_ABI_AT(ncclNet_v8_t, name, 0);
TP_ABI_AT(ncclNet_v8_t, init, 8);
TP_ABI_AT(ncclNet_v8_t, devices, 16);
TP_ABI_AT(ncclNet_v8_t, getProperties, 24);
TP_ABI_AT(ncclNet_v8_t, listen, 32);
TP_ABI_AT(ncclNet_v8_t, connect, 40);
TP_ABI_AT(ncclNet_v8_t, accept, 48);
TP_ABI_AT(ncclNet_v8_t, regMr, 56);
TP_ABI_AT(ncclNet_v8_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v8_t, deregMr, 72);
TP_ABI_AT(ncclNet_v8_t, isend, 80);
TP_ABI_AT(ncclNet_v8_t, irecv, 88);
TP_ABI_AT(ncclNet_v8_t, iflush, 96);
TP_ABI_AT(ncclNet_v8_t, test, 104);
TP_ABI_AT(ncclNet_v8_t, closeSend, 112);
TP_ABI_AT(ncclNet_v8_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v8_t, closeListen, 128);
TP_ABI_AT(ncclNet_v8_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v8_t, irecvConsumed, 144);
TP_ABI_SIZE(ncclNet_v8_t, 152);

TP_ABI_AT(ncclNet_v9_t, name, 0);
TP_ABI_AT(ncclNet_v9_t, init, 8);
TP_ABI_AT(ncclNet_v9_t, devices, 16);
TP_ABI_AT(ncclNet_v9_t, getProperties, 24);
TP_ABI_AT(ncclNet_v9_t, listen, 32);
TP_ABI_AT(ncclNet_v9_t, connect, 40);
TP_ABI_AT(ncclNet_v9_t, accept, 48);
TP_ABI_AT(ncclNet_v9_t, regMr, 56);
TP_ABI_AT(ncclNet_v9_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v9_t, deregMr, 72);
TP_ABI_AT(ncclNet_v9_t, isend, 80);
TP_ABI_AT(ncclNet_v9_t, irecv, 88);
TP_ABI_AT(ncclNet_v9_t, iflush, 96);
TP_ABI_AT(ncclNet_v9_t, test, 104);
TP_ABI_AT(ncclNet_v9_t, closeSend, 112);
TP_ABI_AT(ncclNet_v9_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v9_t, closeListen, 128);
TP_ABI_AT(ncclNet_v9_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v9_t, irecvConsumed, 144);
TP_ABI_AT(ncclNet_v9_t, makeVDevice, 152);
TP_ABI_SIZE(ncclNet_v9_t, 160);

TP_ABI_AT(ncclNet_v10_t, name, 0);
TP_ABI_AT(ncclNet_v10_t, init, 8);
TP_ABI_AT(ncclNet_v10_t, devices, 16);
TP_ABI_AT(ncclNet_v10_t, getProperties, 24);
TP_ABI_AT(ncclNet_v10_t, listen, 32);
TP_ABI_AT(ncclNet_v10_t, connect, 40);
TP_ABI_AT(ncclNet_v10_t, accept, 48);
TP_ABI_AT(ncclNet_v10_t, regMr, 56);
TP_ABI_AT(ncclNet_v10_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v10_t, deregMr, 72);
TP_ABI_AT(ncclNet_v10_t, isend, 80);
TP_ABI_AT(ncclNet_v10_t, irecv, 88);
TP_ABI_AT(ncclNet_v10_t, iflush, 96);
TP_ABI_AT(ncclNet_v10_t, test, 104);
TP_ABI_AT(ncclNet_v10_t, closeSend, 112);
TP_ABI_AT(ncclNet_v10_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v10_t, closeListen, 128);
TP_ABI_AT(ncclNet_v10_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v10_t, irecvConsumed, 144);
TP_ABI_AT(ncclNet_v10_t, makeVDevice, 152);
TP_ABI_SIZE(ncclNet_v10_t, 160);

TP_ABI_AT(ncclNet_v11_t, name, 0);
TP_ABI_AT(ncclNet_v11_t, init, 8);
TP_ABI_AT(ncclNet_v11_t, devices, 16);
TP_ABI_AT(ncclNet_v11_t, getProperties, 24);
TP_ABI_AT(ncclNet_v11_t, listen, 32);
TP_ABI_AT(ncclNet_v11_t, connect, 40);
TP_ABI_AT(ncclNet_v11_t, accept, 48);
TP_ABI_AT(ncclNet_v11_t, regMr, 56);
TP_ABI_AT(ncclNet_v11_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v11_t, deregMr, 72);
TP_ABI_AT(ncclNet_v11_t, isend, 80);
TP_ABI_AT(ncclNet_v11_t, irecv, 88);
TP_ABI_AT(ncclNet_v11_t, iflush, 96);
TP_ABI_AT(ncclNet_v11_t, test, 104);
TP_ABI_AT(ncclNet_v11_t, closeSend, 112);
TP_ABI_AT(ncclNet_v11_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v11_t, closeListen, 128);
TP_ABI_AT(ncclNet_v11_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v11_t, irecvConsumed, 144);
TP_ABI_AT(ncclNet_v11_t, makeVDevice, 152);
TP_ABI_AT(ncclNet_v11_t, finalize, 160);
TP_ABI_AT(ncclNet_v11_t, setNetAttr, 168);
TP_ABI_SIZE(ncclNet_v11_t, 176);

TP_ABI_AT(ncclNet_v12_t, name, 0);
TP_ABI_AT(ncclNet_v12_t, init, 8);
TP_ABI_AT(ncclNet_v12_t, devices, 16);
TP_ABI_AT(ncclNet_v12_t, getProperties, 24);
TP_ABI_AT(ncclNet_v12_t, listen, 32);
TP_ABI_AT(ncclNet_v12_t, connect, 40);
TP_ABI_AT(ncclNet_v12_t, accept, 48);
TP_ABI_AT(ncclNet_v12_t, regMr, 56);
TP_ABI_AT(ncclNet_v12_t, regMrDmaBuf, 64);
TP_ABI_AT(ncclNet_v12_t, deregMr, 72);
TP_ABI_AT(ncclNet_v12_t, isend, 80);
TP_ABI_AT(ncclNet_v12_t, irecv, 88);
TP_ABI_AT(ncclNet_v12_t, iflush, 96);
TP_ABI_AT(ncclNet_v12_t, test, 104);
TP_ABI_AT(ncclNet_v12_t, closeSend, 112);
TP_ABI_AT(ncclNet_v12_t, closeRecv, 120);
TP_ABI_AT(ncclNet_v12_t, closeListen, 128);
TP_ABI_AT(ncclNet_v12_t, getDeviceMr, 136);
TP_ABI_AT(ncclNet_v12_t, irecvConsumed, 144);
TP_ABI_AT(ncclNet_v12_t, makeVDevice, 152);
TP_ABI_AT(ncclNet_v12_t, finalize, 160);
TP_ABI_AT(ncclNet_v12_t, setNetAttr, 168);
TP_ABI_SIZE(ncclNet_v12_t, 176);

}  // namespace twinpath::abi

#undef TP_ABI_AT
#undef TP_ABI_SIZE
