#pragma once
// What the comms of one session share; each of them keeps it alive.
//
// Threads: as each part says.
#include <cstdint>
#include <memory>

#include "plugin/base/socket.h"
#include "plugin/rdma/devices.h"
#include "plugin/transport.h"
#include "proxy/connect/decision_log.h"
#include "proxy/connect/expected_traffic.h"
#include "proxy/connect/making_clock.h"
#include "proxy/connect/stranger_log.h"
#include "proxy/queues/completion_engine.h"
#include "proxy/queues/shared_sets.h"

namespace twinpath {

struct SessionCore {
  explicit SessionCore(std::int64_t wait_pause) : waits(wait_pause) {}
  std::shared_ptr<Devices> devices;
  std::shared_ptr<CompletionHub> hub;
  CommSettings settings;
  ExpectedTraffic expected;
  DecisionLog decisions;
  StrangerLog strangers;
  WaitLog waits;
  SharedSets shared;
  SpareFd spare;  // for a listener that has no descriptor left
};

}  // namespace twinpath
