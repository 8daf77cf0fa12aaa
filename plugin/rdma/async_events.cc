#include "plugin/rdma/async_events.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath {

AsyncEvents::AsyncEvents(const Verbs& verbs, ibv_context* context, std::string device)
    : verbs_(verbs), context_(context), device_(std::move(device)) {
  if (context_->async_fd < 0) return;
  const int flags = ::fcntl(context_->async_fd, F_GETFL);
  if (flags >= 0) (void)::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
}

void AsyncEvents::poll() {
  if (context_->async_fd < 0) return;
  if (!lock_.try_lock()) return;  // another comm is at it
  std::lock_guard hold(lock_, std::adopt_lock);
  for (;;) {
    // Asked first, so that a file which would not become non-blocking cannot stop us.
    pollfd p{context_->async_fd, POLLIN, 0};
    if (::poll(&p, 1, 0) != 1 || (p.revents & POLLIN) == 0) return;
    ibv_async_event event{};
    if (verbs_.get_async_event(context_, &event) != 0) return;
    count(event);
    handle(event);
    verbs_.ack_async_event(&event);
  }
}

// Under the lock, so each number has one writer at a time.
void AsyncEvents::count(const ibv_async_event& event) {
  const auto set = [](counters::PortCounts& c, counters::PortState state) {
    c.state.set(static_cast<std::uint32_t>(state));
  };
  for (const Counted& c : counted_) {
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) c.counts->failed.add(1);
    if (c.port != event.element.port_num) continue;
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        c.counts->went_down.add(1);
        set(*c.counts, counters::PortState::down);
        break;
      case IBV_EVENT_PORT_ACTIVE:
        c.counts->came_up.add(1);
        set(*c.counts, counters::PortState::up);
        break;
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_LID_CHANGE:
        c.counts->changed_address.add(1);
        break;
      default:
        break;
    }
  }
}

void AsyncEvents::handle(const ibv_async_event& event) {
  const char* text = verbs_.event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const std::uint32_t qpn = event.element.qp->qp_num;
      TP_WARN("%s: QP %u failed: %s", device_.c_str(), qpn, text);
      failed_queues_.push_back({qpn, event.event_type != IBV_EVENT_QP_FATAL});
      any_queue_failed_.store(true, std::memory_order_release);
      return;
    }
    case IBV_EVENT_CQ_ERR:
      // It cannot go before the event is acknowledged.
      TP_WARN(
          "%s: a completion queue failed: %s; connections that use it go on with another one "
          "(TWINPATH_FAILOVER) or are lost",
          device_.c_str(), text);
      failed_completions_.push_back(event.element.cq->cq_context);
      any_completions_failed_.store(true, std::memory_order_release);
      return;
    case IBV_EVENT_DEVICE_FATAL:
      TP_WARN("%s failed: %s; see the kernel log (dmesg)", device_.c_str(), text);
      device_failed_.store(true, std::memory_order_relaxed);
      return;
    case IBV_EVENT_PORT_ERR:
      TP_WARN(
          "%s port %d went down: %s; connections over it go on over another port "
          "(TWINPATH_FAILOVER) or wait; check the cable and the switch port (ip link, ibstat)",
          device_.c_str(), event.element.port_num, text);
      std::erase_if(ports_down_,
                    [&](const PortDown& p) { return p.port == event.element.port_num; });
      ports_down_.push_back({event.element.port_num, now_ns()});
      downs_.fetch_add(1, std::memory_order_relaxed);
      return;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
      TP_WARN(
          "%s port %d: %s; connections made with the old address are made anew, without "
          "TWINPATH_FAILOVER they may fail",
          device_.c_str(), event.element.port_num, text);
      address_changes_.fetch_add(1, std::memory_order_relaxed);
      return;
    case IBV_EVENT_PORT_ACTIVE:
      TP_INFO(net, "%s port %d is up again", device_.c_str(), event.element.port_num);
      address_changes_.fetch_add(1, std::memory_order_relaxed);  // it may have got others meanwhile
      return;
    default:
      TP_INFO(net, "%s: %s", device_.c_str(), text);
      return;
  }
}

// Linux refuses every call on a device that goes, then destroys what is on it, then tells the event
// (ib_uverbs_free_hw_resources, uverbs_main.c).  Firmware that ended is told of before all that,
// and whatever the adapter is to answer gives EIO from then on.  A completion channel is the
// kernel's alone.
bool AsyncEvents::taken_away(std::int64_t now) {
  constexpr std::int64_t kBetween = 20 * kMillisecond;
  constexpr std::int64_t kDestroying = kSecond;  // far more than it takes
  const std::lock_guard hold(lock_);
  if (!device_failed() || verbs_.create_comp_channel == nullptr ||
      verbs_.destroy_comp_channel == nullptr)
    return false;
  if (now - asked_ >= kBetween) {
    asked_ = now;
    errno = 0;
    ibv_comp_channel* const made = verbs_.create_comp_channel(context_);
    const int error = errno;
    if (made != nullptr) (void)verbs_.destroy_comp_channel(made);
    if (made != nullptr || error != EIO)
      refused_since_ = 0;
    else if (refused_since_ == 0)
      refused_since_ = now;
  }
  return refused_since_ != 0 && now - refused_since_ >= kDestroying;
}

bool AsyncEvents::queue_failed(std::uint32_t qpn) {
  if (!any_queue_failed_.load(std::memory_order_acquire)) return false;
  std::lock_guard hold(lock_);
  return find_queue(qpn) != nullptr;
}

bool AsyncEvents::request_refused(std::uint32_t qpn) {
  if (!any_queue_failed_.load(std::memory_order_acquire)) return false;
  std::lock_guard hold(lock_);
  const FailedQueue* const failed = find_queue(qpn);
  return failed != nullptr && failed->refused;
}

bool AsyncEvents::completions_failed(const void* owner) {
  if (!any_completions_failed_.load(std::memory_order_acquire)) return false;
  std::lock_guard hold(lock_);
  return std::find(failed_completions_.begin(), failed_completions_.end(), owner) !=
         failed_completions_.end();
}

const AsyncEvents::FailedQueue* AsyncEvents::find_queue(std::uint32_t qpn) const {
  const auto found = std::find_if(failed_queues_.begin(), failed_queues_.end(),
                                  [&](const FailedQueue& f) { return f.qpn == qpn; });
  return found == failed_queues_.end() ? nullptr : &*found;
}

std::int64_t AsyncEvents::port_went_down(std::uint8_t port) {
  std::lock_guard hold(lock_);
  for (const PortDown& p : ports_down_)
    if (p.port == port) return p.at;
  return 0;
}

void AsyncEvents::forget_queue(std::uint32_t qpn) {
  std::lock_guard hold(lock_);
  std::erase_if(failed_queues_, [&](const FailedQueue& f) { return f.qpn == qpn; });
}

void AsyncEvents::forget_completions(const void* owner) {
  std::lock_guard hold(lock_);
  std::erase(failed_completions_, owner);
}

}  // namespace twinpath
