#pragma once
// Over which port of a merged device a GIN connection goes.  NCCL 2.28 and 2.29 merge ports, and
// open up to four connections a communicator on the merged device: these take its ports in turn.
// All queues, tables and windows of a connection are on the one port, so no word is ever added to
// by two adapters.  (From 2.30 on NCCL gives each connection a port of its own.)
//
// All ranks take the port of the same place, since hosts' first ports may be on another network
// than their second ones.  A port that is down at any rank when the connection is made is left out
// if another one is not: with none that is up everywhere it is waited for, as net's connections do.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gda/connect/mesh.h"
#include "gda/team/way_ports.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda {

// What a rank says of the ports of its device.
struct PortsOfRank {
  std::uint8_t ports = 0;
  std::uint32_t usable = 0;  // have an address: a bit each
  std::uint32_t up = 0;      // those of them that are not down
  std::uint32_t turn = 0;    // how many connections of the team are before this one
};

// The place of the port that `rank` takes: the first rank's turn, among the ports that are up at
// all ranks, or else usable at all.  Where the ranks' devices are unlike, or have no such port in
// common, among its own. `all[rank]` can use one at least.
std::size_t choose_rail(std::span<const PortsOfRank> all, std::size_t rank);

// What a rank says of the ports that its connection may move to, by place.
struct SecondPortsOfRank {
  PortsOfRank can;                   // without the first port
  std::uint64_t first = 0;           // which port that is, of all hosts'; 0: not known
  std::vector<std::uint64_t> which;  // the same of each; empty: the rank's version does not say
};

// The place of the second port that `rank` takes, if all ranks have one in common.  Where another
// one will do nobody takes what is another rank's first port (way_ports.h).
std::optional<std::size_t> choose_second_rail(std::span<const SecondPortsOfRank> all,
                                              std::size_t rank);

// Collective: the rail of this rank's connection number `turn` over the device.  What cannot be
// used is named in the log, where `name` is what connects ("GIN").
Result<Rail> agree_on_rail(const Devices& devices, int device, std::uint32_t turn, const char* name,
                           Mesh& mesh);

// Collective: another port of the device for a connection that is over `first`, else one in reserve
// (Devices::standby), at the same place at all ranks; none where there is no such port, or where a
// rank does not want it.
struct SecondRail {
  std::optional<Rail> rail;
  std::vector<PortIds> ports;  // by rank, where there is one
};
Result<SecondRail> agree_on_second_rail(const Devices& devices, int device, const Rail& first,
                                        bool wanted, Mesh& mesh);

}  // namespace twinpath::gda
