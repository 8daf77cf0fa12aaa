#pragma once
// Which of the modes each peer of a GIN comm gets: the decision of topology/ from both ends'
// placement records, as far as the fabric of this process can do it.
//
//   gda-cpu  the adapter itself executes the kernel's work requests, a CPU rings: the software
//            HCA only, see soft_back_end.h
//   proxy    a CPU thread posts them on a queue pair: every adapter
//
// Mode `gda` needs an adapter whose doorbell a GPU can ring; `stage` would need windows that are
// not registered: both get the next that can be had, and the log says so.
//
// Threads: setup.
#include <string>
#include <vector>

#include "gda/gin_core.h"

namespace twinpath::gda {

// Collective.  By rank, the own one included; both ends of a pair come to the same mode.
Result<std::vector<PeerPlan>> agree_on_modes(const GinCore& core, int device);

// What both ends of one pair of ranks do, from the records and what is under them.  Pure.
struct PairEnds {
  PlacementRecord here, there;
  EndNames here_names, there_names;
};
struct Pairing {
  ModeChoice mode = ModeChoice::proxy;
  std::string why;      // for the log line of the peer
  std::string warning;  // what was asked for and is not had; empty: nothing
};
Pairing pair_up(const PairEnds& ends, bool soft_fabric, bool gpu);

}  // namespace twinpath::gda
