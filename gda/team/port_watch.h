#pragma once
// Whether a team's port is lost, or a CQ of the team on that port's adapter.  A port that is down
// may come back, and the adapter's retries wait for that; but kernels spin meanwhile.  So it has
// the time that connections of the other transport give theirs (TWINPATH_FAILOVER_HOLD_MS), unless
// its queues can move to another (second_port.h).
//
// Threads: look() one at a time, the others from any.
#include <atomic>
#include <cstdint>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/base/run_clock.h"
#include "plugin/rdma/devices.h"

namespace twinpath::gda {

class PortWatch {
 public:
  // `team`: the owner of its CQs (make_completion_queue), of which there is none yet.
  PortWatch(const Rail& rail, const Devices& devices, const void* team);
  // To be called about ten times a second, at now_ns(), and when told() is true.  Empty, or why
  // nothing will come over it any more.
  std::string look(std::int64_t at);
  // Whether its adapter has told of a change since then.  A system call.
  bool told();
  // When last looked at.
  bool down() const { return down_since_.load(std::memory_order_relaxed) != 0; }
  std::uint32_t changes() const {
    return changes_.load(std::memory_order_relaxed);
  }  // another number: not the same since

 private:
  const Rail& rail_;
  const Devices& devices_;
  const void* const team_;
  RunClock ran_{kSecond};
  std::int64_t looked_ = 0;  // of ran_, as the next
  std::atomic<std::int64_t> down_since_{0};
  std::atomic<std::uint32_t> changes_{0};  // that the adapter had told of
};

}  // namespace twinpath::gda
