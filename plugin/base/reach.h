#pragma once
// How far an address reaches: one order for the question which interface's address the control
// connections get, and for the question which GID a RoCE port gets.
//
// Threads: pure functions.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace twinpath {

// Worst first.
enum class Reach : std::uint8_t {
  nowhere,   // no address of one end: unspecified, multicast, broadcast
  loopback,  // this host alone
  link,      // one link; an IPv6 one only with an interface's number, which each host has its own
  host_bridge,  // a network of this host's containers or virtual machines
  aside,        // lo's and dummies' addresses, tunnels, bridges without a way out: perhaps routed
  network       // private and global addresses alike
};

namespace detail {

// `a` in network order.
inline Reach reach_of_ipv4(const std::uint8_t* a) {
  constexpr std::array<std::uint8_t, 4> kBroadcast{255, 255, 255, 255};
  if (a[0] == 0 || (a[0] & 0xf0) == 0xe0 || std::equal(kBroadcast.begin(), kBroadcast.end(), a))
    return Reach::nowhere;
  if (a[0] == 127) return Reach::loopback;  // all of 127/8, RFC 1122
  if (a[0] == 169 && a[1] == 254) return Reach::link;
  // What an IPv6-only host translates for its own programs (464XLAT, RFC 7335).
  if (a[0] == 192 && a[1] == 0 && a[2] == 0 && a[3] < 8) return Reach::link;
  return Reach::network;
}

}  // namespace detail

// Of the 4 or 16 bytes of an address of that family, in network order.  IPv4 within IPv6
// (::ffff:a.b.c.d, as GIDs have it) counts as IPv4.
inline Reach reach_of(int family, const std::uint8_t* a) {
  if (family == AF_INET) return detail::reach_of_ipv4(a);
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(kMapped.begin(), kMapped.end(), a)) return detail::reach_of_ipv4(a + 12);
  if (a[0] == 0xff) return Reach::nowhere;
  const auto zero = [](std::uint8_t b) { return b == 0; };
  if (std::all_of(a, a + 15, zero)) return a[15] == 1 ? Reach::loopback : Reach::nowhere;
  if (a[0] == 0xfe && (a[1] & 0xc0) == 0x80)
    return std::all_of(a + 8, a + 16, zero) ? Reach::nowhere : Reach::link;
  return Reach::network;
}

}  // namespace twinpath
