#include "proxy/connect/peer_link.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/rdma/completion_text.h"

namespace twinpath {

std::string rail_text(const Rail& rail) {
  return rail.port.port->name + " GID index " + std::to_string(rail.gid.index) + " " +
         gid_text(rail.gid.gid) + " (port " + std::to_string(rail.port.port->number) + ")";
}

std::string rail_text(const HelloRail& rail) {
  return rail.port + " GID index " + std::to_string(rail.gid_index) + " " + gid_text(rail.gid);
}

PeerLink::PeerLink(std::unique_ptr<QueueSet> queues, TcpSocket socket, PeerName peer,
                   const PeerMemory& memory, ConnectionCounts counts, Attendant* attendant)
    : counts_(std::move(counts)),
      control_(std::move(socket), attendant != nullptr),
      queues_(std::move(queues)),
      peer_(std::move(peer)),
      watch_(queues_->devices().config().peer_timeout_ms),
      memory_(memory),
      attendant_(attendant) {
  if (attendant_ != nullptr) recovery_ = std::make_unique<Recovery>(*this);
  if (queues_->engines().size() == 1) only_ = queues_->engines().front();
  hub().listen(this);
}

PeerLink::~PeerLink() {
  hub().unlisten(this);
  if (lost_with_peer_) {
    const std::lock_guard hold(hub().lock);
    if (const auto all = hub().losses.closed(peer_.process))
      TP_WARN("%u connections to %s were lost in all", *all, peer_.process.c_str());
  }
  if (!control_.socket().is_open()) return;
  broken_ = true;  // whatever the peer still says is no news for a comm that closes
  // Bytes left unread would turn our close into a reset, which can overtake the goodbye.
  (void)hear(1);
  if (control_.sent()) control_.socket().leave({&kGoodbye, 1});
}

int PeerLink::poll(const QueueSet& queues) {
  hub().begin_polls();
  int taken = 0;
  // Whoever is served may need a further engine.
  for (std::size_t i = 0; i < queues.engines().size(); ++i) {
    CompletionEngine* engine = queues.engines()[i];
    const int n = hub().poll(*engine);
    if (n >= 0) {
      taken += n;
    } else if (queues.uses(*engine)) {
      fail("the completion queue of %s cannot be read (%d); see the kernel log (dmesg)",
           engine->device(), n);
    }
  }
  return taken;
}

void PeerLink::fail(const char* format, ...) {
  if (broken_) return;
  std::array<char, 1024> text;
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(text.data(), text.size(), format, args);
  va_end(args);
  lost(text.data() + down_texts() + "; " + ends_text());
}

void PeerLink::lost(const std::string& text) {
  TP_WARN("connection to %s is lost: %s%s", peer_.text.c_str(), text.c_str(), last_text().c_str());
  break_link();
}

void PeerLink::lost_with_peer(const std::string& text) {
  lost_with_peer_ = true;
  const auto lost_by_now = hub().losses.lost(peer_.process);
  if (lost_by_now == LossLog::kInFull) return lost(text);
  TP_INFO(net, "connection to %s is lost: %s%s", peer_.text.c_str(), text.c_str(),
          last_text().c_str());
  if (lost_by_now)
    TP_WARN("%u connections to %s are lost by now", *lost_by_now, peer_.process.c_str());
  break_link();
}

void PeerLink::break_link() {
  broken_ = halted_ = true;
  counts_.lost();
  say(kBroken);
  hub().announce_failure(this);
}

void PeerLink::sibling_failed() {
  if (!broken_ && !std::exchange(told_failure_, true)) say(kFailure);
}

// The first rail's ends; messages about a queue name its own.
std::string PeerLink::ends_text() const {
  std::string text = "from " + rail_text(queues_->rails()[0]) + " to " + rail_text(peer_.rails[0]);
  const int more = std::max(std::popcount(queues_->regular_rails()), peer_.regular) - 1;
  if (more > 0) text += " and " + std::to_string(more) + (more == 1 ? " more rail" : " more rails");
  return text;
}

// Empty while the port is up and has the address that the queues were made with.  Asks the adapter,
// whose events may lag behind its completions.
std::string PeerLink::down_text(const Rail& rail) const {
  const Port& port = *rail.port.port;
  AsyncEvents& events = rail.port.adapter->events;
  events.poll();
  const std::optional<bool> active = queues_->devices().port_active(rail.port);
  if (!active) return {};
  const std::string name = "the local port " + port.device + ":" + std::to_string(port.number);
  if (*active) {
    if (queues_->devices().address_stands(rail.port, rail.gid)) return {};
    return name + " has lost the address " + gid_text(rail.gid.gid) + " at GID index " +
           std::to_string(rail.gid.index) + ", or has it at another index (ip addr)";
  }
  std::string text = name + " is down";
  if (const std::int64_t at = events.port_went_down(port.number); at != 0)
    text += " since " + std::to_string((now_ns() - at) / kMillisecond) + " ms or more";
  return text + ", check its cable and switch port (ip link, ibstat)";
}

std::string PeerLink::down_texts() const {
  const std::uint32_t counted = set().rails_in_use() | set().regular_rails();
  std::string all;
  for (std::size_t r = 0; r < queues_->rails().size(); ++r)
    if (const std::string down =
            (counted >> r & 1) != 0 ? down_text(queues_->rails()[r]) : std::string();
        !down.empty())
      all += "; " + down;
  return all;
}

// Empty while the control connection lives.
std::string PeerLink::death_text() const {
  const char* const see =
      "; see the peer's own log, and its host's kernel log (dmesg) if that tells nothing";
  switch (control_.socket().look()) {
    case PeerSign::ended:
      return std::string("the peer's process ended without closing the connection") + see;
    case PeerSign::reset:
      return "the peer's host reset the control connection (" + control_.socket().end_text() +
             "): the peer's process was killed, or its host was started anew" + see;
    case PeerSign::quiet:
    case PeerSign::talking:
    case PeerSign::unreachable:
      break;
  }
  return {};
}

// For a peer that does not answer on the data path either.
std::string PeerLink::silence_text() const {
  const std::string why = control_.socket().end_text();
  return "the peer's host does not answer: no sign of life on the control connection for " +
         std::to_string(control_.socket().silence_ms()) + " ms" +
         (why.empty() ? "" : " (" + why + ")") +
         ", and no data moved; it has crashed or is cut off; if it lives, look at the control "
         "network, here " +
         control_.socket().local_text() +
         " (NCCL_SOCKET_IFNAME chooses it), and at the data network";
}

// Rails on several devices may well have queues of the same number.
const Queue* PeerLink::find_queue(const QueueSet& set, const ibv_wc& wc) {
  for (const Queue& q : set.queues())
    if (q.engine == hub().polled() && q.qp != nullptr && q.qp->qp_num == wc.qp_num) return &q;
  return nullptr;
}

void PeerLink::fail_completion(const WrId& id, const ibv_wc& wc) {
  if (broken_) return;
  const Queue* found = find_queue(*queues_, wc);
  // Of queues that were halted, or replaced.
  if (recovery_ != nullptr && (recovery_->running() || found == nullptr)) return;
  count_error(wc);
  const Queue& queue = found != nullptr ? *found : queues_->queues().front();
  const Rail& rail = queues_->rails()[static_cast<std::size_t>(queue.rail)];
  const HelloRail& remote = peer_.rails[static_cast<std::size_t>(queue.remote_rail)];
  // The adapter may be faster than the peer's last words were read.
  const std::string said = left_at_ == 0 ? hear(now_ns()) : std::string();
  const bool refused = queues_->request_refused(queue);
  // The peer may have stopped for the same reason.
  if (broken_ || halted_ || (said.empty() && !refused && recovers(id, wc, queue))) return;
  std::string cause = down_text(rail);
  if (cause.empty()) cause = queues_->devices().absence_text(rail.port);
  const bool of_path = !cause.empty();
  if (cause.empty()) cause = said;
  if (cause.empty() && left_at_ != 0)
    cause =
        "the peer closed the connection before all that was sent to it had arrived; look for its "
        "own error message";
  if (cause.empty()) cause = death_text();
  if (cause.empty() && control_.socket().owed_ms(now_ns()) >= kQuietMs) cause = silence_text();
  const bool of_peer = !of_path && !cause.empty();
  if (cause.empty() && refused) cause = kRequestRefused;
  if (cause.empty()) cause = completion_hint(wc.status);
  const std::string text = completion_text(id, wc) + " on " + rail_text(rail) + ", QP " +
                           std::to_string(wc.qp_num) + ", to " + rail_text(remote) + ": " + cause;
  of_peer ? lost_with_peer(text) : lost(text);
}

void PeerLink::fail_local_completion(const WrId& id, const ibv_wc& wc, const QueueSet& queues) {
  if (broken_) return;
  count_error(wc);
  const Queue* found = find_queue(queues, wc);
  const Queue& queue = found != nullptr ? *found : queues.queues().front();
  const Rail& rail = queues.rails()[static_cast<std::size_t>(queue.rail)];
  std::string cause = queues_->devices().absence_text(rail.port);
  if (cause.empty())
    cause = wc.status == IBV_WC_REM_ACCESS_ERR
                ? "the adapter may not read the GPU memory it has just written (see dmesg)"
                : completion_hint(wc.status);
  lost(completion_text(id, wc) + " on " + rail_text(rail) + ", QP " + std::to_string(wc.qp_num) +
       ": " + cause);
}

std::string PeerLink::completion_text(const WrId& id, const ibv_wc& wc) const {
  std::array<char, 200> text;
  (void)std::snprintf(text.data(), text.size(), "%s failed with %s (status %d, vendor error 0x%x)",
                      work_name(static_cast<int>(id.kind)),
                      queues_->devices().verbs().wc_status_str(wc.status),
                      static_cast<int>(wc.status), wc.vendor_err);
  return text.data();
}

bool PeerLink::time_to_watch() {
  const std::int64_t now = now_ns();
  if (now < next_watch_) return false;
  const bool first = next_watch_ == 0;
  next_watch_ = now + (recovery_ != nullptr ? kCloseWatch : kWatchPeriod);
  return !first && !broken_;
}

void PeerLink::watch(std::int64_t now, Waiting waiting) {
  for (std::size_t r = 0; r < queues_->rails().size(); ++r) {
    const Rail& rail = queues_->rails()[r];
    AsyncEvents& events = rail.port.adapter->events;
    events.poll();
    if (events.device_failed() && (queues_->rails_in_use() >> r & 1) != 0) {
      fail("the local device %s failed; see the kernel log (dmesg)",
           rail.port.port->device.c_str());
      return;
    }
  }
  if (recovery_ != nullptr) {
    recovery_->look_at_ports(now);
    if (waiting.requests > 0) recovery_->look_for_stalls(now);
    if (broken_) return;
  }
  for (const Queue& q : queues_->queues()) {
    const Rail& rail = queues_->rails()[static_cast<std::size_t>(q.rail)];
    if (q.qp == nullptr || halted_) continue;
    const std::uint32_t qpn = q.qp->qp_num;
    if (!rail.port.adapter->events.queue_failed(qpn)) continue;
    // Its completions say more than the event does, where there are any.
    while (poll() > 0) {
    }
    if (halted_) return;
    if (recovery_ != nullptr && recovery_->ready() && !queues_->request_refused(q)) {
      recovery_->queue_failed(number_of(q), "QP " + std::to_string(qpn) + " of " +
                                                rail.port.port->name + " went into error");
      return;
    }
    fail("QP %u of %s went into error; see the logs of both ends and the kernel log (dmesg)",
         q.qp->qp_num, rail.port.port->name.c_str());
    return;
  }
  if (left_at_ == 0) {
    watch_socket(now, waiting);
  } else if (gone_.look(now) > kGoodbyeGrace && waiting.requests > 0) {
    fail(
        "the peer closed the connection while %d requests were outstanding here; look for its own "
        "error message",
        waiting.requests);
  }
}

void PeerLink::watch_socket(std::int64_t now, Waiting waiting) {
  waiting.add(probe_.answers());
  const PeerSign sign = control_.socket().look();
  if (waiting.requests > 0) control_.socket().ask(now, kAskEvery);
  const Verdict verdict = watch_.look(sign, control_.socket().owed_ms(now), now,
                                      waiting.requests > 0, waiting.progress);
  const bool talking = sign == PeerSign::talking;
  if (verdict == Verdict::fine && !talking) return;
  if (verdict == Verdict::suspect && !talking) {
    ask();
    return;
  }
  // What the peer did before counts: take every completion first.
  while (poll() > 0) {
  }
  if (talking) {
    read_words(now);
    return;
  }
  const std::string text = verdict == Verdict::silent ? silence_text() : death_text();
  if (broken_) return;
  lost_with_peer(text + " (" + std::to_string(waiting.requests) + " requests outstanding)" +
                 down_texts() + "; " + ends_text());
}

// No bytes and no notice: the peer's process learns nothing of it.
void PeerLink::ask() {
  if (halted_) return;
  if (recovery_ != nullptr)
    recovery_->ask(now_ns());
  else
    probe_.ask(queue(0).qp.get(), probe_id(0), probe_target(queue(0)));
}

bool PeerLink::ask(int q) {
  return post_probe(queue(q).qp.get(), probe_id(q), probe_target(queue(q)));
}

std::uint64_t PeerLink::probe_id(int q) const {
  const auto id = set().comm_id();
  return encode(WrId{id.index, id.epoch, WrKind::probe, static_cast<std::uint16_t>(q),
                     static_cast<std::uint16_t>(incarnation_)});
}

void PeerLink::answered(const ibv_wc& wc) {
  if (generation_of(wc.wr_id) != static_cast<std::uint16_t>(incarnation_)) return;
  (void)probe_.answered(wc, peer_.text);
  if (recovery_ != nullptr) recovery_->answered(slot_of(wc.wr_id));
}

}  // namespace twinpath
