#pragma once
// The two ports of a context whose queues can move: 0 is the team's first, 1 its second.
#include <cstddef>
#include <string>

#include "gda/served/port_pairs.h"
#include "gda/team/team_core.h"

namespace twinpath::gda {

struct TwoPorts {
  PortPairs& queues(int port) const { return port == 0 ? first : second; }
  PortWatch& watch(int port) const { return port == 0 ? *core.port : core.second->watch; }
  // Looked at now.
  bool look(int port, std::int64_t now) const { return !core.down(watch(port), now); }
  const char* name(int port) const { return queues(port).rail().port.port->name.c_str(); }
  // Why nothing moves there; null: it may.
  const char* lacks(int port) const {
    return port == 0 ? nullptr : core.second->lacks.load(std::memory_order_relaxed);
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
};

}  // namespace twinpath::gda
