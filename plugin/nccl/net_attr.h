#pragma once
// NCCL's setNetAttr in our words.  Pure.
#include "plugin/nccl/abi/types.h"
#include "plugin/transport.h"

namespace twinpath {

inline TrafficHints hints_of(const abi::ncclNetAttr_t& attr) {
  // Broadcast to AllReduce, and SendRecv to Recv; what comes after them has other numbers in other
  // versions, but never comes without one of these when a connection is made.
  constexpr std::uint32_t kCollectives = 0x1f, kPairs = 0xe0;
  const auto range = [](std::int32_t least, std::int32_t most) {
    return least >= 1 && most >= least ? TrafficHints::Range{least, most} : TrafficHints::Range{};
  };
  TrafficHints h;
  h.point_to_point = (attr.op & kCollectives) == 0 && (attr.op & kPairs) != 0;
  h.peers = range(attr.sendCommAttr.minConcurrentPeers, attr.sendCommAttr.maxConcurrentPeers);
  h.connections = range(attr.sendCommAttr.minFlowsPerPeer, attr.sendCommAttr.maxFlowsPerPeer);
  return h;
}

}  // namespace twinpath
