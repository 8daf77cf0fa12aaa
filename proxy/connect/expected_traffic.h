#pragma once
// What NCCL says of the operations to come (setNetAttr), and what follows from it.
//
// Before it makes a connection NCCL says what that is for, and how many peers and connections to
// each there may be at once.  Several connections to one peer that serve messages between two
// ranks only (send, receive, all-to-all) have between them as many queues as
// NCCL_IB_QPS_PER_CONNECTION gives a connection of a collective: queues are there to take
// different paths, and these do already.
//
// Before a transfer it says how many peers and connections it uses just now.  Where these are
// twice as many as the rails, messages of middling length travel whole, each on the next rail: all
// rails have something to do then, and a message that is not cut is one work request and one
// completion, and waits for one rail only.
//
// Hints: neither end relies on what the other one was told.  Threads: any; a message that is long
// enough to be cut reads one word.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/transport.h"

namespace twinpath {

class ExpectedTraffic {
 public:
  // How much longer than TWINPATH_STRIPE_MIN what travels whole may be.
  static constexpr std::size_t kMiddling = 4;

  void set(const TrafficHints& h) {
    if (h.exact()) {
      const std::int64_t messages = std::int64_t{h.peers.most} * h.connections.most;
      at_once_.store(static_cast<std::int32_t>(std::min<std::int64_t>(messages, 1 << 20)),
                     std::memory_order_relaxed);
    } else {
      sharing_.store(h.point_to_point ? std::max(h.connections.most, 1) : 1,
                     std::memory_order_relaxed);
    }
  }
  // Of a connection that is made now, on each port.
  int queues(int configured) const {
    const int sharing = sharing_.load(std::memory_order_relaxed);
    return (configured - 1) / sharing + 1;  // rounded up, whatever sharing is
  }
  // Shorter messages travel whole.
  std::size_t stripe_from(std::size_t least, int rails) const {
    return at_once_.load(std::memory_order_relaxed) >= 2 * rails ? kMiddling * least : least;
  }

 private:
  std::atomic<std::int32_t> sharing_{1}, at_once_{0};
};

}  // namespace twinpath
