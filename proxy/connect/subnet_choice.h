#pragma once
// Which device a connection takes where not every port reaches every other: on Ethernet without
// routes between its networks (ports cabled to each other directly, a network for each rail), one
// that shares a network with the peer's.  NCCL_IB_SUBNET_AWARE_ROUTING, as NCCL's own transport
// from 2.30.7 on: the connector goes by the addresses of the listener's device, which are in the
// handle, and the acceptor by those that the connector has chosen.  In a ring of hosts the device
// that the listener's NCCL named may be on no network of the connector's at all, so the handle has
// the addresses of its others, too.  A listener that chooses nothing itself, as one with a single
// port, tells its address all the same: the connector may have several ports.
#include <array>
#include <span>
#include <vector>

#include "plugin/rdma/devices.h"

namespace twinpath {

// A device's ports on Ethernet, an address each; none of a device that has others, too, or a port
// without an address: such a device cannot be said to be on a network.
using DeviceAddresses = std::vector<ibv_gid>;

// Whether two GIDs are addresses of one network: IPv4 by the first `prefix` bits (1 to 32), IPv6 by
// the first 64.  Link-local ones say nothing of it.  Pure.
bool same_network(const ibv_gid& a, const ibv_gid& b, int prefix);

// `named`, if each of its ports is on a network with one of the peer's; else the first device of
// which that is true; the same with the other addresses of the peer's host; else `named` after
// all.  Pure.
int choose_by_network(int named, std::span<const DeviceAddresses> devices,
                      std::span<const ibv_gid> peer, std::span<const ibv_gid> others, int prefix);

// The addresses of a device's ports as they are now, and as they were when the rails were chosen.
DeviceAddresses addresses_of(const Devices& devices, int device);
DeviceAddresses addresses_of(std::span<const Rail> rails);
// And of all ports that are none of its.
DeviceAddresses other_addresses(const Devices& devices, int device);

// What choose_by_network() says of this process's devices; `named` where the setting is off.
int device_for(const Devices& devices, int named, std::span<const ibv_gid> peer,
               std::span<const ibv_gid> others = {});

}  // namespace twinpath
