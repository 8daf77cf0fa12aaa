#pragma once
// The ways of a queue whose operations are copied (soft_back_end.h), by the keys of either port of
// its team, where that has two.  A copy needs no port, but an adapter moves nothing over one that
// is down: each operation takes the first way whose port is up at both ends, and waits while there
// is none.  What was begun before ends as it is, so nothing goes again, and the queue is back as
// soon as its first port is.
//
// Threads: the engine's; reach() of a way that was chosen, from any.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "gda/team/way_ports.h"
#include "plugin/base/counters.h"
#include "plugin/base/wait_within.h"
#include "plugin/fabric/soft_hca.h"

namespace twinpath::gda {

struct SoftWaysSetup {
  struct Way {
    ibv_qp* qp = nullptr;  // null: there is none
    const char* port = "";
  };
  const SoftHca* soft = nullptr;  // the fabric's
  std::array<Way, 2> ways;
  WayPorts ports;  // of these, whose keys each takes
  // Not null, and set: why nothing takes the second one.
  const std::atomic<const char*>* lacks = nullptr;
  counters::MoveCounts* counts = nullptr;  // not null where there are two
  std::int64_t hold = 0;                   // ns for which there may be none
};

class SoftWays {
 public:
  explicit SoftWays(const SoftWaysSetup& setup);
  static constexpr int kNone = -1, kLost = -2;
  // The first that is up.
  int find() const;
  // For what begins now: 0, 1, none, or none for too long, which was logged.  `name`: the queue's.
  int choose(const char* name) { return reach_[1] == nullptr ? 0 : choose_of_two(name); }
  soft::Reach& reach(int way) const { return *reach_[static_cast<std::size_t>(way)]; }
  // Whose keys of this rank and of the peer that way takes, 0 or 1.
  const WayPorts& ports() const { return setup_.ports; }
  // Copies stay in order whatever their way.
  std::uint64_t order() const { return reach(0).order(); }

 private:
  int choose_of_two(const char* name);
  int none(const char* name);

  const SoftWaysSetup setup_;
  std::array<std::unique_ptr<soft::Reach>, 2> reach_;  // the second: null where there is one way
  int on_ = 0;
  std::optional<RunLimit> limit_;  // while there is none
};

}  // namespace twinpath::gda
