#pragma once
// The two ports of a context whose queues can move: 0 is the team's first, 1 its second.  A pair of
// queues has two ways, 0 and 1, each over one of the ports here (way_ports.h).
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gda/served/port_pairs.h"
#include "gda/team/team_core.h"

namespace twinpath::gda {

struct TwoPorts {
  // And the way that is over a port.
  int port(std::size_t pair, int way) const { return way ^ swapped[pair]; }
  PortPairs& queues(std::size_t pair, int way) const { return at(port(pair, way)); }
  PortPairs& at(int port) const { return port == 0 ? first : second; }
  PortWatch& watch(int port) const { return core.watch(port); }
  PortWatch& watch(std::size_t pair, int way) const { return watch(port(pair, way)); }
  // Looked at now.
  bool look(int port, std::int64_t now) const { return !core.down(watch(port), now); }
  const char* name(std::size_t pair, int way) const {
    return queues(pair, way).rail().port.port->name.c_str();
  }
  // Why nothing moves to that way; null: it may.
  const char* lacks(int way) const {
    return way == 0 ? nullptr : core.second->lacks.load(std::memory_order_relaxed);
  }
  int rank_of(std::size_t pair) const { return static_cast<int>(pair % ranks); }
  // A rank that has said goodbye needs no way.
  bool has_left(std::size_t pair) const {
    return !to_itself(pair) && core.mesh->look(rank_of(pair)).left;
  }
  bool to_itself(std::size_t pair) const { return rank_of(pair) == core.rank(); }

  // All outlive this.
  TeamCore& core;
  const std::size_t ranks;  // pair p is to rank p % ranks
  PortPairs& first;
  PortPairs& second;
  std::vector<std::uint8_t> swapped{};  // by pair: 1: its first way is over the second port
};

}  // namespace twinpath::gda
