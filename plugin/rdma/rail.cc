#include "plugin/rdma/rail.h"

#include <arpa/inet.h>

#include <algorithm>

namespace twinpath {
namespace {

constexpr std::uint8_t kEthernet = 1, kGrhRequired = 2;

}  // namespace

std::uint8_t encode_port_flags(const HelloRail& rail) {
  return static_cast<std::uint8_t>((rail.roce ? kEthernet : 0) |
                                   (rail.grh_required ? kGrhRequired : 0));
}

void decode_port_flags(std::uint8_t flags, HelloRail& rail) {
  rail.roce = (flags & kEthernet) != 0;
  rail.grh_required = (flags & kGrhRequired) != 0;
}

void encode_rail(Writer& w, const HelloRail& rail) {
  w.text(rail.port);
  w.integer(rail.lid);
  w.integer(static_cast<std::uint8_t>(rail.mtu));
  w.raw(rail.gid.raw, sizeof rail.gid.raw);
  w.integer(rail.gid_index);
  w.integer(encode_port_flags(rail));
  w.integer(rail.speed_mbps);
}

bool decode_rail(Reader& r, int number, HelloRail& rail, std::string& why) {
  rail.port = loggable(r.text());
  rail.lid = r.integer<std::uint16_t>();
  const int mtu = r.integer<std::uint8_t>();
  r.raw(rail.gid.raw, sizeof rail.gid.raw);
  rail.gid_index = r.integer<std::uint8_t>();
  decode_port_flags(r.integer<std::uint8_t>(), rail);
  rail.speed_mbps = r.integer<std::uint32_t>();
  if (!r.ok()) {
    why = "the hello ends inside rail " + std::to_string(number);
    return false;
  }
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) {
    why = "rail " + std::to_string(number) + " of the hello has MTU code " + std::to_string(mtu);
    return false;
  }
  rail.mtu = static_cast<ibv_mtu>(mtu);
  return true;
}

HelloRail Rail::hello() const {
  const Port& p = *port.port;
  return {p.name,
          lid,
          mtu,
          gid.gid,
          static_cast<std::uint8_t>(gid.index),
          p.roce,
          grh_required,
          static_cast<std::uint32_t>(std::max(p.speed_mbps, 0))};
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  (void)::inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

}  // namespace twinpath
