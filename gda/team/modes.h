#pragma once
// Which of the modes each peer of a GIN comm gets: the decision of topology/ from both ends'
// placement records, as far as the fabric of this process can do it.
//
//   gda      the adapter executes what kernels write and ring: mlx5 adapters, and the software
//            HCA's model of one (adapter_context.h); where the GPU turns out not to be able to
//            ring, gda-cpu
//   gda-cpu  the same, a CPU rings; on the software HCA its own engine takes the adapter's part
//            (soft_back_end.h)
//   proxy    a CPU thread posts them on a queue pair: every adapter
//
// An adapter's own queues are used where both ends of every pair of the team ask for them, for a
// signal has one kind of writer and windows have one kind of keys: else nobody's are.  `stage`
// would need windows that are not registered: it gets the next that can be had, and the log says
// so.
//
// Signals are counted (counted_signals.h) where an adapter has no atomics, and then mostly for all:
// a signal table gets adapters' atomics or a CPU's adds.  An adapter's atomics are atomic among its
// own, with a CPU's only where it says so (IBV_ATOMIC_GLOB): elsewhere adds of one kind would be
// lost to the other.
//
// Threads: setup.
#include <span>
#include <string>
#include <vector>

#include "gda/team/gin_core.h"

namespace twinpath::gda {

// Collective.  Fills plans (by rank, the own one included; both ends of a pair come to the same
// mode), adapter and bells.
Status agree_on_modes(GinCore& core, int device);

// What an end's adapter has and may use.
enum class Atomics : std::uint8_t { none, own, global };
// By peer: whether the signals between rank `rank` and it, both ways, are counted.  `all`: by rank.
// Pure; both ends of a pair come to the same.
std::vector<bool> counted_peers(std::span<const Atomics> all, int rank);

// What both ends of one pair of ranks do, from the records and what is under them.  Pure.
struct PairEnds {
  PlacementRecord here, there;
  EndNames here_names, there_names;
  // Why an end's adapter cannot serve queues; empty: it can, and is ready to.
  std::string no_adapter_here = "it was not asked for", no_adapter_there = no_adapter_here;
};
struct Pairing {
  ModeChoice mode = ModeChoice::proxy;
  bool adapter = false;  // its own queues, if those of all pairs are
  std::string why;       // for the log line of the peer
  std::string warning;   // what was asked for and is not had; empty: nothing
};
Pairing pair_up(const PairEnds& ends, bool soft_fabric, bool gpu);
// Whether such a wish asks for an adapter's own queues.
bool asks_for_adapter(ModeChoice wish, bool soft_fabric);

}  // namespace twinpath::gda
