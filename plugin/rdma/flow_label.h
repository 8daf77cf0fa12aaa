#pragma once
// Which of several equal paths a queue pair's packets take on RoCE v2.  Switches hash addresses and
// UDP ports; the source port alone differs between the queue pairs of two hosts.  Adapters make it
// out of the GRH's flow label (InfiniBand annex A17 and rdma-core's ibv_flow_label_to_udp_sport):
// 0xc000 | (low 14 bits ^ high 6 bits).  Label 0 leaves it to the driver, which has one port for
// all on old kernels and mixes queue numbers on newer ones, so that two may share a path.
#include <algorithm>
#include <cstdint>

namespace twinpath {

inline constexpr std::uint32_t kFlowPorts = 1u << 14;

// Of queue `index` of a connection whose first queues have these numbers.  The same at both ends,
// so that acknowledgements come by the way that data go; never 0; different ports for any
// kFlowPorts queues of a connection.
constexpr std::uint32_t flow_label(std::uint32_t one, std::uint32_t other, std::uint32_t index) {
  const std::uint32_t low = std::min(one, other), high = std::max(one, other);
  std::uint32_t mixed = (low * 0x9e3779b1u) ^ (high * 0x85ebca77u);
  mixed ^= mixed >> 15;
  mixed *= 0x2c1b3c6du;
  mixed ^= mixed >> 13;
  // The bit above the port's keeps the label from being 0 and flips one bit of every port.
  return kFlowPorts | ((mixed + index) % kFlowPorts);
}

constexpr std::uint16_t udp_source_port(std::uint32_t label) {
  return static_cast<std::uint16_t>(0xc000u | ((label ^ (label >> 14)) & 0x3fffu));
}

}  // namespace twinpath
