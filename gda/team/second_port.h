#pragma once
// The port to which a team's connection moves its queues when its first port fails: another one of
// a merged device, or one in reserve.  What may not have arrived is sent again there
// (gda/served/back/replay.h), so it takes
//   - signals that are counted, at all ranks: whether an atomic was added nobody can tell;
//   - a fabric that places in order whatever the memory (Verbs::ordered).  Behind PCIe what came
//     over the first port would need a flush there before the second one's signals are told;
//   - no adapter that serves the queues itself: what it does is not seen here;
//   - at each rank another port of the device or in reserve, of the same place: where there is a
//     choice none that another rank has as its first (rail_turns.h).  Else queues between these two
//     have one port at both ends, so some are over the second one from the start (way_ports.h);
//   - TWINPATH_FAILOVER.
// Windows and tables are registered there from the start.
//
// Threads: made at setup; who drives the team's contexts watches.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/team/port_watch.h"
#include "gda/team/way_ports.h"
#include "plugin/rdma/rail.h"

namespace twinpath::gda {

struct TeamCore;

struct SecondPort {
  SecondPort(const Rail& on, const AdapterLimits& can, std::vector<PortIds> of_ranks,
             const Devices& devices, const void* team)
      : rail(on), limits(can), ports(std::move(of_ranks)), watch(rail, devices, team) {}
  // Of the queues of that context between these two ranks.
  WayPorts ways(int rank, int peer, std::size_t context) const {
    return choose_ways(ports[static_cast<std::size_t>(rank)], ports[static_cast<std::size_t>(peer)],
                       rank, peer, context);
  }
  // Whether some queues of that rank, to that one or any, are over a second port from the start,
  // here or there.
  bool crosses(int rank, int peer) const { return ways(rank, peer, 0).swapped(); }
  bool crosses(int rank) const;

  const Rail rail;
  const AdapterLimits limits;
  const std::vector<PortIds> ports;  // by rank
  PortWatch watch;
  // Why nothing moves there after all, once: some window is not registered there at some rank, or
  // some rank is not reached.  Null: it may.
  std::atomic<const char*> lacks{nullptr};
};

// Where nobody chose (TWINPATH_GIN_ATOMICS), this rank's adapter is taken for one without atomics
// if its part of the team can then go over to another port: before ranks tell each other what
// theirs have.  A rank that has no other port counts with the others; what that costs is in
// test/MEASUREMENTS.md.
void count_to_move(TeamCore& team);

// Collective: team.second, where there is one.  `can`: whether this rank's part of the team may go
// over to one, whatever the ports.
Status agree_on_second_port(TeamCore& team, bool can);

}  // namespace twinpath::gda
