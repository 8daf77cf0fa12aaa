#pragma once
// The networks that this host's interfaces are on, and whether a router leads out of them: where
// none does, a peer is reached over the interface on its network and over no other.
//
// Threads: any.  Pure but for own_networks().
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plugin/base/ip_range.h"

namespace twinpath {

struct OwnNetwork {
  IpRange range;         // an interface's address, and how many bits of it are the network's
  int interface = 0;     // its index
  bool gateway = false;  // a route of any table goes by a router on this interface
};

// All addresses of this network namespace.  Where the kernel does not tell routes, every network
// counts as one with a router.
std::vector<OwnNetwork> own_networks();

// The same from the kernel's answers to RTM_GETADDR and RTM_GETROUTE.
std::vector<OwnNetwork> networks_in(std::span<const std::uint8_t> addresses,
                                    std::optional<std::span<const std::uint8_t>> routes);

// By how many leading bits the networks of a host's ports are told apart, if a port reaches those
// peers only that are on its network: there are two networks or more, each on one port, none has
// a router, and their prefixes are of one length.  nullopt where one of this does not hold.
std::optional<int> apart_by(std::span<const OwnNetwork> networks_of_ports);

}  // namespace twinpath
