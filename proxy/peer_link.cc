#include "proxy/peer_link.h"

#include <array>
#include <cstdarg>
#include <cstdio>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "proxy/completion_text.h"

namespace twinpath {

PeerLink::PeerLink(std::unique_ptr<QueueSet> queues, TcpSocket socket, PeerName peer)
    : socket_(std::move(socket)), queues_(std::move(queues)), peer_(std::move(peer)) {
  hub().listen(this);
}

PeerLink::~PeerLink() {
  hub().unlisten(this);
  if (!socket_.is_open()) return;
  // Bytes left unread would turn our close into a reset, which can overtake the goodbye.
  read_goodbye(1);
  std::size_t sent = 0;
  const std::uint8_t goodbye = kGoodbye;
  (void)socket_.send_part({&goodbye, 1}, sent);
}

int PeerLink::poll(const QueueSet& queues) {
  int taken = 0;
  for (CompletionEngine* engine : queues.engines()) {
    const int n = hub().poll(*engine);
    if (n >= 0) {
      taken += n;
    } else {
      fail("the completion queue of %s cannot be read (%d); see the kernel log (dmesg)",
           engine->device(), n);
    }
  }
  return taken;
}

void PeerLink::fail(const char* format, ...) {
  if (broken_) return;
  broken_ = true;
  std::array<char, 1024> text;
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(text.data(), text.size(), format, args);
  va_end(args);
  TP_WARN("connection to %s is lost: %s", peer_.text.c_str(), text.data());
  hub().announce_failure(this);
}

void PeerLink::sibling_failed() {
  if (broken_ || !socket_.is_open()) return;
  std::size_t sent = 0;
  const std::uint8_t failure = kFailure;
  (void)socket_.send_part({&failure, 1}, sent);
}

void PeerLink::fail_completion(const WrId& id, const ibv_wc& wc) {
  if (broken_) return;
  const Queue* q = queues_->find(wc.qp_num);
  const Queue& queue = q != nullptr ? *q : queues_->queues().front();
  const Rail& rail = queues_->rails()[static_cast<std::size_t>(queue.rail)];
  const HelloRail& remote = peer_.rails[static_cast<std::size_t>(queue.remote_rail)];
  fail(
      "%s failed with %s (status %d, vendor error 0x%x) on %s GID index %d %s, QP %u, to %s %s: %s",
      work_name(static_cast<int>(id.kind)), queues_->devices().verbs().wc_status_str(wc.status),
      static_cast<int>(wc.status), wc.vendor_err, rail.port.port->name.c_str(), rail.gid.index,
      gid_text(rail.gid.gid).c_str(), wc.qp_num, remote.port.c_str(), gid_text(remote.gid).c_str(),
      completion_hint(wc.status));
}

void PeerLink::fail_local_completion(const WrId& id, const ibv_wc& wc, const QueueSet& queues) {
  if (broken_) return;
  const Queue* q = queues.find(wc.qp_num);
  const Queue& queue = q != nullptr ? *q : queues.queues().front();
  const Rail& rail = queues.rails()[static_cast<std::size_t>(queue.rail)];
  fail("%s failed with %s (status %d, vendor error 0x%x) on %s GID index %d %s, QP %u: %s",
       work_name(static_cast<int>(id.kind)), queues_->devices().verbs().wc_status_str(wc.status),
       static_cast<int>(wc.status), wc.vendor_err, rail.port.port->name.c_str(), rail.gid.index,
       gid_text(rail.gid.gid).c_str(), wc.qp_num,
       wc.status == IBV_WC_REM_ACCESS_ERR
           ? "the adapter may not read the GPU memory it has just written (see dmesg)"
           : completion_hint(wc.status));
}

void PeerLink::check_clock(int outstanding) {
  const std::int64_t now = now_ns();
  if (now < next_watch_) return;
  const bool first = next_watch_ == 0;
  next_watch_ = now + kWatchPeriod;
  if (!first && !broken_) watch(now, outstanding);
}

void PeerLink::watch(std::int64_t now, int outstanding) {
  for (const Rail& rail : queues_->rails()) {
    AsyncEvents& events = rail.port.adapter->events;
    events.poll();
    if (events.device_failed()) {
      fail("the local device %s failed", rail.port.port->device.c_str());
      return;
    }
  }
  for (const Queue& q : queues_->queues()) {
    const Rail& rail = queues_->rails()[static_cast<std::size_t>(q.rail)];
    if (!rail.port.adapter->events.queue_failed(q.qp->qp_num)) continue;
    // Its completions say more than the event does, where there are any.
    while (poll() > 0) {
    }
    fail("QP %u of %s went into error", q.qp->qp_num, rail.port.port->name.c_str());
    return;
  }
  if (left_at_ == 0) {
    switch (socket_.peek()) {
      case Status::ok:
        return;
      case Status::again:
        read_goodbye(now);
        return;
      default: {
        // What the peer did before it died counts: take every completion first.
        while (poll() > 0) {
        }
        fail(
            "the peer's process ended without closing the connection (%d requests outstanding); "
            "look for its own error message",
            outstanding);
        return;
      }
    }
  }
  if (outstanding > 0 && now - left_at_ > kGoodbyeGrace)
    fail("the peer closed the connection while %d requests were outstanding here", outstanding);
}

void PeerLink::read_goodbye(std::int64_t now) {
  std::array<std::uint8_t, 16> bytes;
  std::size_t got = 0;
  (void)socket_.recv_part(bytes, got);
  for (std::size_t i = 0; i < got; ++i)
    if (bytes[i] == kGoodbye) left_at_ = now;
  for (std::size_t i = 0; i < got; ++i) {
    if (bytes[i] != kFailure) continue;
    fail("the peer lost another rank of this communicator; its log names that rank");
    return;
  }
}

}  // namespace twinpath
