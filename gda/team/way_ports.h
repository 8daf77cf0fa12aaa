#pragma once
// Which of its team's two ports each of two ranks has for the ways between them.  The first way is
// over the first port of both, the second over the second one of both.  But of two ranks of a host
// that have each other's first port as their second, as NCCL's two GPUs near to the same two
// adapters, both ways would be over both ports, and either one's loss that of both.  Then one of
// the two has its ports in the other order there, and both ends of each way are on one port.
//
// Who that is, and so which port is the first way's, changes with ranks and contexts, for else one
// port had all and the other nothing.
//
// Threads: values and pure functions.
#include <array>
#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

// Of some memory, by port.
using PortKeys = std::array<std::uint32_t, 2>;

// A rank's first and second port, of all hosts'; 0: it is not known which.
struct PortIds {
  std::uint64_t first = 0, second = 0;
};

// The port, 0 or 1, by way.
struct WayPorts {
  int here(int way) const { return way ^ swapped_here; }
  int there(int way) const { return way ^ swapped_there; }
  bool swapped() const { return swapped_here != swapped_there; }

  int swapped_here = 0, swapped_there = 0;  // 1 at one end at most
};

// Both ends come to the same.
WayPorts choose_ways(const PortIds& here, const PortIds& there, int rank, int peer,
                     std::size_t context);

}  // namespace twinpath::gda
