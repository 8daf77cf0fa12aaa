#pragma once
// The two ports of a context whose queues can move: 0 is the team's first, 1 its second.
#include <cstddef>
#include <string>

#include "gda/served/port_queues.h"
#include "gda/team/gin_core.h"

namespace twinpath::gda {

struct TwoPorts {
  PortQueues& queues(int port) const { return port == 0 ? first : second; }
  PortWatch& watch(int port) const { return port == 0 ? *core.port : core.second->watch; }
  const char* name(int port) const { return queues(port).rail().port.port->name.c_str(); }
  // Why nothing moves there; null: it may.
  const char* lacks(int port) const {
    return port == 0 ? nullptr : core.second->lacks.load(std::memory_order_relaxed);
  }
  int rank_of(std::size_t pair) const { return static_cast<int>(pair % ranks); }
  bool to_itself(std::size_t pair) const { return rank_of(pair) == core.rank(); }

  // All outlive this.
  GinCore& core;
  const std::size_t ranks;  // pair p is to rank p % ranks
  PortQueues& first;
  PortQueues& second;
};

}  // namespace twinpath::gda
