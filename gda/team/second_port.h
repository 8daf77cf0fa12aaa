#pragma once
// The port to which a team's connection moves its queues when its first port fails: another one of
// a merged device, or one in reserve.  What may not have arrived is sent again there
// (gda/served/back/replay.h), so it takes
//   - signals that are counted, at all ranks: whether an atomic was added nobody can tell, but for
//     what the soft HCA's engine copies (gda/served/back/soft_ways.h);
//   - that what came over the first port is in place before a signal over the second one is told:
//     settled_at_move();
//   - no adapter that serves the queues itself: what it does is not seen here;
//   - at each rank another port of the device or in reserve, of the same place: where there is a
//     choice none that another rank has as its first (rail_turns.h).  Else queues between these two
//     have one port at both ends, so some are over the second one from the start (way_ports.h);
//   - TWINPATH_FAILOVER.
// Windows and tables are registered there from the start.
//
// Why host memory is settled on any adapter.  A rank tells its peer how many signals it has taken,
// without which the peer sends nothing over the second port, only after it has
//   - given the old queue pair to the adapter as failed (PortPairs::stop), which the adapter has
//     confirmed.  From then on what comes to it is dropped (IB specification vol. 1, 10.3.1.7);
//   - polled what that queue pair still had: the receive and the send that were posted last of all
//     (gda/served/port_moves.h).
// The adapter has written both answers, of the command and of the last receive, to host memory, by
// the same function as the data before them.  PCIe lets no write pass an earlier one, unless the
// later one is marked as relaxed (base specification, 2.4.1).  So data that was registered with
// relaxed ordering (plugin/fabric/registration.h) may pass what came before it, but completions,
// commands' answers and tables are not so registered, and pass no data.  Where a provider's library
// makes up the completions of a failed queue pair by itself, the command's answer is left, and is
// enough.  The CPU has thus seen what was written behind the data; then it tells.  What the peer
// sends again, and its later signals, come after that.  A move back is the same the other way.
// Software adapters of the kernel have no PCIe at all: the processor copies.
//
// GPU memory is another destination, and the answers say nothing of it.  A READ of it pushes what
// its own adapter has written, but one whose port is lost may not read.  So a rank asks the GPU's
// driver, once both answers are there and before it tells its peer (write_flush.h); afterwards what
// each port brings is read for, before any signal is told (gpu_flush.h).  That orders a put over
// one port with a signal over the other one, too, which kernels of NCCL take for granted
// (gda/README.md, "Data before signals").  Where the driver cannot, or where a port writes by data
// direct, which is another way to the GPU than its driver sees to, nothing is settled with a GPU.
//
// Threads: made at setup; who drives the team's contexts watches.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gda/connect/queue_pair.h"
#include "gda/team/port_watch.h"
#include "gda/team/way_ports.h"
#include "plugin/rdma/rail.h"

namespace twinpath::gda {

struct TeamCore;

// What of a rank's memory is in place once a queue pair to it is out of service.
enum class Settled : std::uint8_t { none, host, all };
struct PlaceFacts {
  bool ordered = false;  // Verbs::ordered
  bool gpu = false;      // kernels run on one, and windows may lie there
  bool flushed = false;  // its driver makes visible what came over a port that is left
};
constexpr Settled settled_at_move(const PlaceFacts& of) {
  if (of.ordered) return Settled::all;
  if (!of.gpu) return Settled::host;
  return of.flushed ? Settled::all : Settled::none;
}

// What a team's part at a rank can do with one, whatever the ports.
enum class SecondUse : std::uint8_t {
  none,
  moves,   // queues move there
  either,  // what begins takes the first that is up: gda/served/back/soft_ways.h
};

struct SecondPort {
  struct Place {
    const Rail& rail;
    const AdapterLimits& limits;
    Settled settled;
    SecondUse use;
  };
  SecondPort(const Place& at, std::vector<PortIds> of_ranks, const Devices& devices,
             const void* team)
      : rail(at.rail),
        limits(at.limits),
        settled(at.settled),
        use(at.use),
        ports(std::move(of_ranks)),
        watch(rail, devices, team) {}
  // Of the queues of that context between these two ranks.
  WayPorts ways(int rank, int peer, std::size_t context) const {
    return choose_ways(ports[static_cast<std::size_t>(rank)], ports[static_cast<std::size_t>(peer)],
                       rank, peer, context);
  }
  // Whether some queues of that rank, to that one or any, are over a second port from the start,
  // here or there.
  bool crosses(int rank, int peer) const { return ways(rank, peer, 0).swapped(); }
  bool crosses(int rank) const;
  // Whether the team is as well off with either port.
  bool either() const {
    return use == SecondUse::either && lacks.load(std::memory_order_relaxed) == nullptr;
  }
  // Whether that is the first reason, which is kept.
  bool lack(const char* why) {
    const char* none = nullptr;
    return lacks.compare_exchange_strong(none, why, std::memory_order_relaxed);
  }

  const Rail rail;
  const AdapterLimits limits;
  const Settled settled;
  const SecondUse use;
  const std::vector<PortIds> ports;  // by rank
  PortWatch watch;
  // Why nothing moves there after all: some window is not registered there at some rank, or some
  // rank is not reached.  Null: it may.
  std::atomic<const char*> lacks{nullptr};
};

// Where nobody chose (TWINPATH_GIN_ATOMICS), this rank's adapter is taken for one without atomics
// if its part of the team can then go over to another port: before ranks tell each other what
// theirs have.  A rank that has no other port counts with the others; what that costs is in
// test/MEASUREMENTS.md.
void count_to_move(TeamCore& team);

// Collective: team.second, where there is one.
Status agree_on_second_port(TeamCore& team, SecondUse use);

}  // namespace twinpath::gda
