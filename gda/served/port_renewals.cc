// See port_renewals.h.
#include "gda/served/port_renewals.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "gda/served/back/work_request_id.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

PortRenewals::PortRenewals(const TwoPorts& ports, std::size_t pairs)
    : ports_(ports), pairs_(pairs), maker_(ports_, pairs) {}

void PortRenewals::attach(std::size_t p, MovingQueue& back, const Ends& ends) {
  pairs_[p].back = &back;
  pairs_[p].ends = ends;
}

void PortRenewals::look_at_ports(std::int64_t now) {
  for (const int port : {0, 1}) {
    const auto at = static_cast<std::size_t>(port);
    const PortWatch& looked = ports_.watch(port);
    (void)ports_.look(port, now);
    const bool same = up_since_[at] != 0 && changes_[at] == looked.changes();
    if (!same) up_since_[at] = now;
    if (looked.down()) up_since_[at] = 0;
    if (std::exchange(changes_[at], looked.changes()) != looked.changes()) look_at_addresses(port);
    look_at_loops(port, now);
  }
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    if (pairs_[p].back == nullptr || pairs_[p].state != State::wanted) continue;
    tell_lost(p);
    advance(p);
  }
}

// One may be lost alone, or with a port that no queue here was over: then no queue pair is made
// anew with it.
void PortRenewals::look_at_loops(int port, std::int64_t now) {
  std::int64_t& due = loops_due_[static_cast<std::size_t>(port)];
  if (now < due || !settled(port) || !ports_.at(port).loops_broken()) return;
  due = now + ports_.core.config().failover_pace.first_pause_ms * kMillisecond;
  maker_.renew_loops(port);
}

// Nothing is asked over an idle queue pair, so that it is mute would show when it is needed.
// Asking the adapter is a system call: once for all that have one address.
void PortRenewals::look_at_addresses(int port) {
  const GidEntry* asked = nullptr;
  bool stands = true;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    if (pairs_[p].back == nullptr || !ready(p)) continue;
    const int way = other(pairs_[p]);
    if (ports_.port(p, way) != port) continue;
    const Rail& rail = ports_.queues(p, way).pair(p)->rail();
    if (asked == nullptr || asked->index != rail.gid.index ||
        std::memcmp(asked->gid.raw, rail.gid.gid.raw, sizeof rail.gid.gid.raw) != 0) {
      asked = &rail.gid;
      stands = ports_.core.devices->address_stands(rail.port, rail.gid);
    }
    if (stands) continue;
    TP_INFO(net, "%s: %s has lost the address %s at GID index %d", pairs_[p].back->name().c_str(),
            ports_.name(p, way), gid_text(rail.gid.gid).c_str(), rail.gid.index);
    lost(p);
  }
}

bool PortRenewals::settled(int port) const {
  const std::int64_t since = up_since_[static_cast<std::size_t>(port)];
  return since != 0 &&
         now_ns() - since >= ports_.core.config().failover_pace.settle_ms * kMillisecond;
}

void PortRenewals::want(std::size_t p, bool pause) {
  Pair& pair = pairs_[p];
  const FailoverPace& pace = ports_.core.config().failover_pace;
  pair.state = State::wanted;
  pair.back->let_move(false, nullptr);
  if (!pause) return;
  pair.pause = std::clamp(2 * pair.pause, pace.first_pause_ms * kMillisecond,
                          pace.longest_pause_ms * kMillisecond);
  pair.due = now_ns() + pair.pause;
}

void PortRenewals::lost(std::size_t p) {
  want(p, true);
  pairs_[p].unsaid = !offers(p);
  tell_lost(p);
}

// Over a port that is down a word would be the end of the queue pair in use, idle as it may be.
void PortRenewals::tell_lost(std::size_t p) {
  Pair& pair = pairs_[p];
  if (!pair.unsaid || pair.back->stopped() || ports_.watch(p, pair.back->on()).down()) return;
  pair.unsaid = false;
  if (!ports_.has_left(p)) (void)post(p, kLost, false);
}

void PortRenewals::left(std::size_t p) {
  Pair& pair = pairs_[p];
  pair.unsaid = false;
  if (!pair.back->may_move()) return want(p, false);
  ports_.queues(p, other(pair)).take_next(p);
}

bool PortRenewals::ask(std::size_t p) const {
  const Ends& ends = pairs_[p].ends;
  const int way = other(pairs_[p]);
  if (ends.beat == nullptr) return ask(p, way, false);
  const PortPairs& queues = ports_.queues(p, way);
  return post_read(
      queues.pair(p)->qp(), WorkRequestId::of(p, WorkRequestId::kQuestion),
      {{reinterpret_cast<std::uintptr_t>(ends.beat), sizeof *ends.beat, queues.memory().lkey},
       ends.far_beat,
       ends.probed[static_cast<std::size_t>(way)].rkey});
}

// Partner: the adapter's write of it, before the completion that was polled.
std::optional<std::uint64_t> PortRenewals::beat(std::size_t p) const {
  if (pairs_[p].ends.beat == nullptr) return std::nullopt;
  return std::atomic_ref(*pairs_[p].ends.beat).load(std::memory_order_acquire);
}

bool PortRenewals::ask(std::size_t p, int way, bool next) const {
  const PortPairs& queues = ports_.queues(p, way);
  return post_probe((next ? queues.next(p) : queues.pair(p))->qp(),
                    WorkRequestId::of(p, WorkRequestId::kQuestion),
                    pairs_[p].ends.probed[static_cast<std::size_t>(way)]);
}

bool PortRenewals::answered(std::size_t p, bool answers) {
  const State state = pairs_[p].state;
  if (state == State::proving && answers) return --pairs_[p].unanswered == 0 && proven(p);
  if (state != State::proving && (state != State::ready || answers)) return false;
  TP_INFO(net, "%s: %s does not reach it", pairs_[p].back->name().c_str(),
          ports_.name(p, other(pairs_[p])));
  lost(p);
  return false;
}

bool PortRenewals::on_word(std::size_t p, std::uint32_t immediate) {
  Pair& pair = pairs_[p];
  if (immediate == kHasWord) {
    pair.word = under_way_ = true;
    pair.in = *pair.ends.box;
  } else if (immediate == kWorks) {
    if (pair.state != State::joined) return false;
    if (offers(p)) return works(p);
    prove(p);
  } else if (pair.state == State::joined || (pair.state == State::ready && !pair.back->stopped())) {
    want(p, true);
  }
  return false;
}

void PortRenewals::followed(std::size_t p) {
  Pair& pair = pairs_[p];
  if (pair.state == State::making)
    pair.followed = true;
  else if (pair.state == State::joined || pair.state == State::wanted)
    (void)works(p);
}

void PortRenewals::advance() {
  under_way_ = false;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    const Pair& pair = pairs_[p];
    if (pair.back == nullptr || !pair.to_do()) continue;
    advance(p);
    under_way_ |= pair.to_do();
  }
}

void PortRenewals::advance(std::size_t p) {
  Pair& pair = pairs_[p];
  if (pair.back->stopped() && !pair.back->dead()) return;  // on its way to the other port
  switch (pair.state) {
    case State::proving:
      return;
    case State::joined:
    case State::ready:
    case State::wanted:
      return begin(p);
    case State::making:
      return made(p);
    case State::offered:
      return take_answer(p);
    case State::raising:
      return raised(p);
  }
}

// Who does not offer makes its own for each offer, whatever it thought of the one before.  An offer
// is of the queue pair in use: who has made it does not move before it is answered, and a move
// leaves nothing unread of the queue pair that it came by.
void PortRenewals::begin(std::size_t p) {
  Pair& pair = pairs_[p];
  const int way = other(pair);
  if (pair.back->dead() || !settled(ports_.port(p, way)) || ports_.lacks(way) != nullptr) return;
  if (ports_.watch(p, pair.back->on()).down()) return;  // by which the words go
  if (offers(p)) {
    if (pair.state != State::wanted || now_ns() < pair.due) return;
    if (ports_.has_left(p)) return want(p, true);
  } else if (!pair.word) {
    return;
  }
  want(p, false);
  pair.word = pair.unsaid = false;
  pair.state = State::making;
  under_way_ = true;
  maker_.make(p, way);
}

void PortRenewals::made(std::size_t p) {
  Pair& pair = pairs_[p];
  const QueueMaker::Answer answer = maker_.look(p);
  if (answer == QueueMaker::Answer::pending) return;
  if (std::exchange(pair.followed, false) && !pair.back->dead()) {
    (void)works(p);
    return;
  }
  if (answer == QueueMaker::Answer::done) {
    maker_.take_in(p);
    pair.back->renew_other(ports_.queues(p, other(pair)).pair(p));
  }
  if (pair.back->dead()) return want(p, true);
  if (answer == QueueMaker::Answer::failed) {
    if (!offers(p)) say(p, QueueWord::Kind::cannot);
    return want(p, true);
  }
  if (!offers(p) || ports_.to_itself(p)) return raise(p);
  pair.state = State::offered;
  say(p, QueueWord::Kind::offer);
}

void PortRenewals::take_answer(std::size_t p) {
  Pair& pair = pairs_[p];
  if (!pair.word) return;
  pair.word = false;
  if (pair.in.kind != QueueWord::Kind::answer) return want(p, true);
  raise(p);
}

void PortRenewals::raise(std::size_t p) {
  Pair& pair = pairs_[p];
  pair.state = State::raising;
  under_way_ = true;
  maker_.raise(p, other(pair), pair.in);
}

void PortRenewals::raised(std::size_t p) {
  Pair& pair = pairs_[p];
  const QueueMaker::Answer answer = maker_.look(p);
  if (answer == QueueMaker::Answer::pending) return;
  if (pair.back->dead()) {
    ports_.queues(p, other(pair)).stop(p);
    return want(p, true);
  }
  const bool done = answer == QueueMaker::Answer::done;
  if (!offers(p)) say(p, done ? QueueWord::Kind::answer : QueueWord::Kind::cannot);
  if (!done) return want(p, true);
  if (offers(p)) return prove(p);
  pair.state = State::joined;
}

void PortRenewals::prove(std::size_t p) {
  Pair& pair = pairs_[p];
  const int way = other(pair);
  const bool next = QueueMaker::has_next(way);
  pair.state = State::proving;
  pair.unanswered = next ? 2 : 1;
  if (!ask(p, way, false) || (next && !ask(p, 1 - way, true))) lost(p);
}

// What this rank asked is answered: the other one's turn is next, or was before.
bool PortRenewals::proven(std::size_t p) {
  Pair& pair = pairs_[p];
  pair.state = State::joined;
  if (ports_.to_itself(p)) return works(p);
  if (!post(p, kWorks, false)) {
    pair.back->fail_unreachable();
    return false;
  }
  return !offers(p) && works(p);
}

bool PortRenewals::works(std::size_t p) {
  Pair& pair = pairs_[p];
  pair.state = State::ready;
  pair.unsaid = false;
  pair.pause = 0;
  const int way = other(pair);
  pair.back->let_move(true,
                      QueueMaker::has_next(way) ? ports_.queues(p, 1 - way).next(p) : nullptr);
  return true;
}

void PortRenewals::say(std::size_t p, QueueWord::Kind kind) {
  Pair& pair = pairs_[p];
  QueueWord& out = *pair.ends.out;
  out = maker_.word(p);
  out.kind = kind;
  // Where nothing can be posted the queue pair in use is at its end, and the pair with it.
  if (!post(p, kHasWord, true)) pair.back->fail_unreachable();
}

bool PortRenewals::post(std::size_t p, std::uint32_t immediate, bool with_word) {
  Pair& pair = pairs_[p];
  const int way = pair.back->on();
  const PortPairs& queues = ports_.queues(p, way);
  const FarMemory word{
      {reinterpret_cast<std::uintptr_t>(pair.ends.out), sizeof(QueueWord), queues.memory().lkey},
      pair.ends.far_box,
      pair.ends.probed[static_cast<std::size_t>(way)].rkey};
  return post_immediate(queues.pair(p)->qp(), WorkRequestId::of(p, WorkRequestId::kWord), immediate,
                        with_word ? &word : nullptr);
}

}  // namespace twinpath::gda
