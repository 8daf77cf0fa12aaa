#pragma once
// Asynchronous events of one device context, read without a thread: comms that wait look in now
// and then (PeerLink::watch).  An event is logged once, with the object it concerns, and what is
// fatal is remembered for the comms that it hits.
//
// Threads: any.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/counters.h"
#include "plugin/base/sync.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

class AsyncEvents {
 public:
  AsyncEvents(const Verbs& verbs, ibv_context* context, std::string device);
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  // That port's events.  Before the first poll().
  void count_into(int port, counters::PortCounts* counts) { counted_.push_back({port, counts}); }

  void poll();
  bool device_failed() const { return device_failed_.load(std::memory_order_relaxed); }
  // Whether the kernel has taken from this process all that it had made on a device which failed:
  // then nothing of that reads or writes memory any more.  `now` as now_ns.
  bool taken_away(std::int64_t now);
  bool queue_failed(std::uint32_t qpn);
  // Whether that was because of a request of the peer that its rights or keys do not allow (IB
  // specification vol. 1, 11.6.3.2: affiliated errors): the same comes of it over any port.
  bool request_refused(std::uint32_t qpn);
  // Whether a CQ made for that owner (make_completion_queue) has failed: what completes there is
  // not told of any more, and neither is a flush.
  bool completions_failed(const void* owner);
  // When the port last went down (now_ns clock), 0: never.
  std::int64_t port_went_down(std::uint8_t port);
  // How often a port's addresses changed, as far as poll() has seen.
  std::uint32_t address_changes() const { return address_changes_.load(std::memory_order_relaxed); }
  // How often a port went down, came up or got other addresses, as far as poll() has seen.
  std::uint32_t port_changes() const {
    return address_changes() + downs_.load(std::memory_order_relaxed);
  }
  // QP numbers are reused: called when a queue is made and when it goes.
  void forget_queue(std::uint32_t qpn);
  // So are addresses: called before an owner makes its first CQ.
  void forget_completions(const void* owner);

 private:
  void handle(const ibv_async_event& event);
  void count(const ibv_async_event& event);

  const Verbs& verbs_;
  ibv_context* context_;
  std::string device_;
  SpinLock lock_;  // the event file, the lists, and what taken_away() knows
  struct FailedQueue {
    std::uint32_t qpn;
    bool refused;
  };
  const FailedQueue* find_queue(std::uint32_t qpn) const;  // under the lock
  std::vector<FailedQueue> failed_queues_;
  std::vector<const void*> failed_completions_;  // owners
  struct PortDown {
    int port;
    std::int64_t at;
  };
  std::vector<PortDown> ports_down_;  // the last time of each port
  struct Counted {
    int port;
    counters::PortCounts* counts;
  };
  std::vector<Counted> counted_;
  std::atomic<bool> device_failed_{false};
  std::int64_t asked_ = 0, refused_since_ = 0;
  std::atomic<bool> any_queue_failed_{false}, any_completions_failed_{false};
  std::atomic<std::uint32_t> address_changes_{0}, downs_{0};
};

}  // namespace twinpath
