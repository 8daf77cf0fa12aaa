#pragma once
// One port of an adapter as a connection uses it, at this end (Rail) and as the peer tells of it
// (HelloRail).
//
// Threads: values and pure functions.
#include <cstdint>
#include <string>

#include "plugin/base/wire.h"
#include "plugin/fabric/fabric.h"
#include "plugin/rdma/live_ports.h"

namespace twinpath {

struct Adapter;  // devices.h

// Standby rails of one end: one more than a neighbour that may be lost for the same reason.
inline constexpr int kMaxStandby = 2;

// One port of a device.
struct RailPort {
  const Port* port = nullptr;
  Adapter* adapter = nullptr;
};

// What an end tells the other of one of its rails.
struct HelloRail {
  std::string port;  // "mlx5_0:1"
  std::uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  ibv_gid gid{};
  std::uint8_t gid_index = 0;  // for messages only
  bool roce = false;
  bool grh_required = false;
  std::uint32_t speed_mbps = 0;
};

void encode_rail(Writer& w, const HelloRail& rail);
// `number`: of the rail, for `why`.
bool decode_rail(Reader& r, int number, HelloRail& rail, std::string& why);

// What a port is, as one byte on the wire.
std::uint8_t encode_port_flags(const HelloRail& rail);
void decode_port_flags(std::uint8_t flags, HelloRail& rail);

// The local end of a rail, its addresses as they were when the connection began.
struct Rail {
  RailPort port;
  GidEntry gid;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint16_t lid = 0;
  bool grh_required = false;
  std::uint16_t pkey_index = 0;
  // The port with the addresses that it has now.
  static Rail of(const RailPort& port, const LivePort& now) {
    return {port, now.gid, now.mtu, now.lid, now.grh_required, now.pkey_index};
  }
  // What the peer is told of it.
  HelloRail hello() const;
};

// GIDs as text.
std::string gid_text(const ibv_gid& gid);

}  // namespace twinpath
