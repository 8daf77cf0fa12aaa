#pragma once
// What the bytes of a GID say.  Pure.
#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace twinpath {

inline bool is_zero(const ibv_gid& g) {
  return std::all_of(std::begin(g.raw), std::end(g.raw), [](std::uint8_t b) { return b == 0; });
}

// fe80::/10, which every port has: of itself it says nothing of a network.
inline bool is_link_local(const ibv_gid& g) {
  return g.raw[0] == 0xfe && (g.raw[1] & 0xc0) == 0x80;
}

// An IPv4 address stands in a GID as ::ffff:a.b.c.d.
inline int family_of(const ibv_gid& g) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(g.raw, kMapped, sizeof kMapped) == 0 ? AF_INET : AF_INET6;
}
// The bytes of that family's address.
inline const std::uint8_t* address_in(const ibv_gid& g) {
  return family_of(g) == AF_INET ? g.raw + 12 : g.raw;
}

// The floating LID in an InfiniBand GID that routers pass on, by which other subnets reach its
// port; 0: it has none.  Bits 32 to 47 of the prefix, behind 10 fixed bits and 22 of 0 (NCCL 2.27
// to 2.32, net_ib/connect.cc).
inline std::uint16_t flid_of(const ibv_gid& g) {
  return static_cast<std::uint16_t>(g.raw[4] << 8 | g.raw[5]);
}

}  // namespace twinpath
