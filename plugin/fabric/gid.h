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

// An IPv4 address stands in a GID as ::ffff:a.b.c.d.
inline int family_of(const ibv_gid& g) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(g.raw, kMapped, sizeof kMapped) == 0 ? AF_INET : AF_INET6;
}
// The bytes of that family's address.
inline const std::uint8_t* address_in(const ibv_gid& g) {
  return family_of(g) == AF_INET ? g.raw + 12 : g.raw;
}

}  // namespace twinpath
