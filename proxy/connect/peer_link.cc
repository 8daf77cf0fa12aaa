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
namespace {

void count_error(counters::Connection& counts, const ibv_wc& wc) {
  const auto status = static_cast<std::size_t>(wc.status);
  counts.errors[std::min(status, counters::kStatuses - 1)].add(1);
}

// Rails on several devices may well have queues of the same number.
const Queue* find_queue(const QueueSet& set, CompletionHub& hub, const ibv_wc& wc) {
  for (const Queue& q : set.queues())
    if (q.engine == hub.polled() && q.has(wc.qp_num)) return &q;
  return nullptr;
}

int number_of(const QueueSet& set, const Queue& queue) {
  return static_cast<int>(&queue - set.queues().data());
}

const char* status_word(QueueSet& set, const ibv_wc& wc) {
  return set.devices().verbs().wc_status_str(wc.status);
}

// What moved last, as of now.
std::string last_text(const counters::Connection& counts, const QueueSet& set) {
  return last_text(counts, set.rails(), set.regular_rails(), now_ns());
}

}  // namespace

PeerLink::PeerLink(std::unique_ptr<QueueSet> queues, CommPlace place, TcpSocket socket,
                   PeerName peer, const PeerMemory& memory, ConnectionCounts counts,
                   bool fails_over)
    : counts_(std::move(counts)),
      control_(std::move(socket), fails_over),
      queues_(std::move(queues)),
      place_(std::move(place)),
      peer_(std::move(peer)),
      watch_(queues_->devices().config().peer_timeout_ms),
      probes_(place_.id(), memory),
      watch_clock_(fails_over ? kCloseWatch : kWatchPeriod) {
  if (fails_over) failover_ = std::make_unique<Failover>(*this);
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
    } else if (queues.uses(*engine) && !engine->failed()) {
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
  lost(text.data() + paths_text(*queues_, peer_));
}

void PeerLink::lost(const std::string& text) {
  TP_WARN("connection to %s is lost: %s%s", peer_.text.c_str(), text.c_str(),
          last_text(*counts(), *queues_).c_str());
  break_link();
}

void PeerLink::lost_with_peer(const std::string& text) {
  lost_with_peer_ = true;
  const auto lost_by_now = hub().losses.lost(peer_.process);
  if (lost_by_now == LossLog::kInFull) return lost(text);
  TP_INFO(net, "connection to %s is lost: %s%s", peer_.text.c_str(), text.c_str(),
          last_text(*counts(), *queues_).c_str());
  if (lost_by_now)
    TP_WARN("%u connections to %s are lost by now", *lost_by_now, peer_.process.c_str());
  break_link();
}

void PeerLink::break_link() {
  broken_ = halted_ = true;
  counts_.lost();
  control_.say(kBroken);
  hub().announce_failure(this);
}

void PeerLink::sibling_failed() {
  if (!broken_ && !std::exchange(told_failure_, true)) control_.say(kFailure);
}

void PeerLink::fail_completion(const WrId& id, const ibv_wc& wc) {
  if (broken_) return;
  const Queue* found = find_queue(*queues_, hub(), wc);
  // Of queues that were halted, or replaced.
  if (failover_ != nullptr && (failover_->running() || found == nullptr)) return;
  count_error(*counts(), wc);
  const Queue& queue = found != nullptr ? *found : queues_->queues().front();
  const Rail& rail = queues_->rails()[static_cast<std::size_t>(queue.rail)];
  const HelloRail& remote = peer_.rails[static_cast<std::size_t>(queue.remote_rail)];
  // The adapter may be faster than the peer's last words were read.
  const std::string said = left_at_ == 0 ? hear(now_ns()) : std::string();
  const bool refused = queues_->request_refused(queue);
  // The peer may have stopped for the same reason.
  if (broken_ || halted_ || (said.empty() && !refused && starts_failover(id, wc, queue))) return;
  std::string cause = down_text(queues_->devices(), rail);
  if (cause.empty()) cause = queues_->devices().absence_text(rail.port);
  const bool of_path = !cause.empty();
  if (cause.empty()) cause = said;
  if (cause.empty() && left_at_ != 0)
    cause =
        "the peer closed the connection before all that was sent to it had arrived; look for its "
        "own error message";
  if (cause.empty()) cause = death_text(control_.socket());
  if (cause.empty() && control_.socket().owed_ms(now_ns()) >= kQuietMs)
    cause = silence_text(control_.socket());
  const bool of_peer = !of_path && !cause.empty();
  if (cause.empty() && refused) cause = kRequestRefused;
  if (cause.empty()) cause = completion_hint(wc.status);
  const std::string text = completion_text(id, wc, status_word(*queues_, wc)) + " on " +
                           rail_text(rail) + ", QP " + std::to_string(wc.qp_num) + ", to " +
                           rail_text(remote) + ": " + cause;
  of_peer ? lost_with_peer(text) : lost(text);
}

bool PeerLink::starts_failover(const WrId& id, const ibv_wc& wc, const Queue& queue) {
  if (failover_ == nullptr || !failover_->ready() || left_at_ != 0 ||
      !death_text(control_.socket()).empty())
    return false;
  const Rail& rail = queues_->rails()[static_cast<std::size_t>(queue.rail)];
  if (QueueSet::given_up(queue)) {
    failover_->queue_failed(queue_count(), "another connection that shares queue pairs on " +
                                               rail.port.port->name + " has left them");
    return true;
  }
  std::string why =
      completion_text(id, wc, status_word(*queues_, wc)) + " on " + rail.port.port->name;
  // Of a port that is down, or an adapter that has gone, adapters say various things.
  if (const std::string down = down_text(queues_->devices(), rail); !down.empty())
    why += ", " + down;
  else if (!queues_->devices().absence_text(rail.port).empty()
               ? !failover_->outlives_adapters(now_ns())
               : !errors_.blamed(wc.status, now_ns()))
    return false;
  failover_->queue_failed(number_of(*queues_, queue), why);
  return true;
}

void PeerLink::fail_local_completion(const WrId& id, const ibv_wc& wc, const QueueSet& queues) {
  if (broken_) return;
  count_error(*counts(), wc);
  const Queue* found = find_queue(queues, hub(), wc);
  const Queue& queue = found != nullptr ? *found : queues.queues().front();
  const Rail& rail = queues.rails()[static_cast<std::size_t>(queue.rail)];
  std::string cause = queues_->devices().absence_text(rail.port);
  if (cause.empty())
    cause = wc.status == IBV_WC_REM_ACCESS_ERR
                ? "the adapter may not read the GPU memory it has just written (see dmesg)"
                : completion_hint(wc.status);
  lost(completion_text(id, wc, status_word(*queues_, wc)) + " on " + rail_text(rail) + ", QP " +
       std::to_string(wc.qp_num) + ": " + cause);
}

void PeerLink::watch(std::int64_t now, Waiting waiting) {
  for (std::size_t r = 0; r < queues_->rails().size(); ++r) {
    const Rail& rail = queues_->rails()[r];
    AsyncEvents& events = rail.port.adapter->events;
    events.poll();
    if (events.device_failed() && (queues_->rails_in_use() >> r & 1) != 0 &&
        (failover_ == nullptr || !failover_->outlives_adapters(now))) {
      fail("the local device %s failed; see the kernel log (dmesg)",
           rail.port.port->device.c_str());
      return;
    }
  }
  if (failover_ != nullptr) {
    failover_->look_at_ports(now);
    if (waiting.requests > 0) failover_->look_for_stalls(now);
    if (broken_) return;
  }
  for (const Queue& q : queues_->queues())
    if (q.qp != nullptr && !halted_ && queue_failed(q)) return;
  if (left_at_ == 0) {
    watch_socket(now, waiting);
  } else if (gone_.look(now) > kGoodbyeGrace && waiting.requests > 0) {
    fail(
        "the peer closed the connection while %d requests were outstanding here; look for its own "
        "error message",
        waiting.requests);
  }
}

// Whether an event tells of that.
bool PeerLink::queue_failed(const Queue& q) {
  const RailPort& port = queues_->rails()[static_cast<std::size_t>(q.rail)].port;
  const std::uint32_t qpn = q.qp->qp_num;
  const bool completions = q.engine->failed();
  if (!completions && !queues_->event_failed(q)) return false;
  // Its completions say more than the event does, where there are any.
  while (poll() > 0) {
  }
  if (halted_) return true;
  const std::string why =
      completions ? failed_completions_text(port.port->device)
                  : "QP " + std::to_string(qpn) + " of " + port.port->name + " went into error";
  if (failover_ != nullptr && failover_->ready() && !queues_->request_refused(q))
    failover_->queue_failed(number_of(*queues_, q), why);
  else
    fail("%s%s", why.c_str(),
         completions ? "" : "; see the logs of both ends and the kernel log (dmesg)");
  return true;
}

void PeerLink::watch_socket(std::int64_t now, Waiting waiting) {
  waiting.add(probes_.answers());
  const PeerSign sign = control_.socket().look();
  if (waiting.requests > 0) control_.socket().ask(now, kAskEvery);
  const Verdict verdict = watch_.look(sign, control_.socket().owed_ms(now), now,
                                      waiting.requests > 0, waiting.progress);
  const bool talking = sign == PeerSign::talking;
  if (verdict == Verdict::fine && !talking) return;
  if (verdict == Verdict::suspect && !talking) {
    // No bytes and no notice: the peer's process learns nothing of it.
    if (failover_ != nullptr && !halted_)
      failover_->ask(now_ns());
    else if (!halted_)
      probes_.ask(queue(0), 0);
    return;
  }
  // What the peer did before counts: take every completion first.
  while (poll() > 0) {
  }
  if (talking) {
    read_words(now);
    return;
  }
  const std::string text =
      verdict == Verdict::silent ? silence_text(control_.socket()) : death_text(control_.socket());
  if (broken_) return;
  lost_with_peer(text + " (" + std::to_string(waiting.requests) + " requests outstanding)" +
                 paths_text(*queues_, peer_));
}

void PeerLink::answered(const ibv_wc& wc) {
  const std::optional<int> queue = probes_.answered(wc, peer_.text);
  if (queue && failover_ != nullptr) failover_->answered(*queue);
}

}  // namespace twinpath
