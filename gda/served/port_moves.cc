// See port_moves.h; gda/served/back/replay.h says what is sent again.
#include "gda/served/port_moves.h"

#include <endian.h>

#include <algorithm>
#include <utility>

#include "gda/served/back/counted_signals.h"
#include "gda/served/back/work_request_id.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// A signal's immediate data is none of a word's of queue pairs made anew.
static_assert(!PortRenewals::is_word(CountedEntry::kInWindow));

}  // namespace

PortMoves::PortMoves(const TwoPorts& ports, MovingInbox& inbox, counters::MoveCounts* counts)
    : ports_(ports),
      inbox_(inbox),
      counts_(counts),
      pairs_(ports.second.size(),
             Pair(StallWatch(ports.core.config().stall_ms, ports.core.rail.port.port->speed_mbps))),
      renewals_(ports_, pairs_.size()) {
  ports_.swapped.resize(pairs_.size());
  for (std::size_t p = 0; p < pairs_.size(); ++p)
    over_[0] += ports.first.pair(p) != nullptr ? 1 : 0;
}

void PortMoves::attach(std::size_t p, MovingQueue& back, const PortRenewals::Ends& ends,
                       int first) {
  pairs_[p].back = &back;
  ports_.swapped[p] = static_cast<std::uint8_t>(first);
  --over_[0];
  ++over_[first];
  renewals_.attach(p, back, ends);
}

int PortMoves::down() const {
  int down = 0;
  for (const int port : {0, 1})
    if (serves(port) && ports_.watch(port).down()) down |= 1 << port;
  return down;
}

bool PortMoves::lost(std::int64_t now) {
  for (const int port : {0, 1})
    if (serves(port) && ports_.core.lost(ports_.watch(port), now)) return true;
  return false;
}

bool PortMoves::news() {
  if (under_way()) return false;
  for (const int port : {0, 1})
    if (serves(port) && ports_.watch(port).told()) return true;
  return down() != down_;
}

void PortMoves::looked(std::int64_t now) {
  renewals_.look_at_ports(now);
  down_ = down();
  if (down_ == 0) look_for_stalls(now);
  for (std::size_t p = 0; p < pairs_.size(); ++p)
    if (ports_.watch(p, pairs_[p].on).down()) ask(p);
}

// A question over a port that is down would be its queue pair's end.
bool PortMoves::may_ask(std::size_t p) const {
  const Pair& pair = pairs_[p];
  const int to = 1 - pair.on;
  return pair.back != nullptr && pair.at == At::serving && renewals_.ready(p) &&
         pair.back->may_move() && ports_.lacks(to) == nullptr && !ports_.watch(p, to).down();
}

void PortMoves::ask(std::size_t p) {
  if (may_ask(p) && renewals_.ask(p)) pairs_[p].at = At::asking;
}

void PortMoves::look_for_stalls(std::int64_t now) {
  if (now - stalls_looked_ < ports_.core.config().stall_ms * kMillisecond / 16) return;
  stalls_looked_ = now;
  const std::int64_t ran = ran_.look(now);
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (!may_ask(p)) continue;
    const MovingQueue::UnderWay all = pair.back->under_way();
    switch (pair.stall.look(ran, all.issued, all.finished, all.bytes)) {
      case StallWatch::Verdict::fine:
        break;
      case StallWatch::Verdict::ask:
        ask(p);
        break;
      case StallWatch::Verdict::mute:
        leave(p, "it acknowledges nothing");
        break;
    }
  }
}

void PortMoves::leave(std::size_t p, const char* why) {
  Pair& pair = pairs_[p];
  if (pair.under_way() || pair.back->dead()) return;
  const int to = 1 - pair.on;
  if (const char* missing = ports_.lacks(to); missing != nullptr) {
    TP_WARN("%s cannot leave %s: %s on %s", name(p), ports_.name(p, pair.on), missing,
            ports_.name(p, to));
    return pair.back->fail_unreachable();
  }
  if (why == nullptr)
    TP_INFO(net, "%s goes back to %s, which works again", name(p), ports_.name(p, to));
  else
    TP_WARN("%s leaves %s for %s: %s", name(p), ports_.name(p, pair.on), ports_.name(p, to), why);
  pair.at = At::stopping;
  pair.left = now_ns();
  pair.limit.emplace(move_limit(ports_.core.config()));
  ++moving_;
  quit(p, pair.on);
  pair.back->stop();
  ask_for_last(p);
}

// Soft-RoCE does not learn of a receive that is posted to a queue pair in error, and gives it back
// when it is told of the error once more.
void PortMoves::ask_for_last(std::size_t p) {
  if (inbox_.stop(p)) return quit(p, pairs_[p].on);
  pairs_[p].back->fail_unreachable();
}

// What an adapter does not confirm it may go on with, and the peer's copy would be the second one.
void PortMoves::quit(std::size_t p, int way) {
  if (ports_.queues(p, way).stop(p)) return;
  TP_WARN("%s: %s does not take its queue pair out of service, so what still comes is not known",
          name(p), ports_.name(p, way));
  pairs_[p].back->fail_unreachable();
}

// It is over the other port from now on.
void PortMoves::arrive(std::size_t p) {
  Pair& pair = pairs_[p];
  --over_[ports_.port(p, pair.on)];
  pair.on = 1 - pair.on;
  ++over_[ports_.port(p, pair.on)];
  pair.receives_came_back = false;
  pair.heard = std::exchange(pair.heard_next, std::nullopt);
}

void PortMoves::end(Pair& pair) {
  pair.at = At::serving;
  pair.fence.reset();
  pair.limit.reset();
  --moving_;
}

// A port that a pair is about to move to may be lost meanwhile; a system call or two.
void PortMoves::look_ahead(std::int64_t now) {
  if (now - looked_ahead_ < kMillisecond) return;
  looked_ahead_ = now;
  for (const int port : {0, 1})
    if (ports_.watch(port).told()) (void)ports_.look(port, now);
}

bool PortMoves::advance() {
  bool moved = false;
  look_ahead(now_ns());
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (!pair.under_way()) continue;
    if (!pair.back->dead() && pair.limit->over(now_ns())) {
      TP_WARN("%s: the peer has not followed to %s in %lld ms", name(p),
              ports_.name(p, 1 - pair.on),
              static_cast<long long>(move_limit(ports_.core.config()) / kMillisecond));
      pass(p, "nothing comes from the peer");
    }
    moved |= advance(p);
    if (pair.back->dead() && pair.under_way()) end(pair);
  }
  return moved;
}

bool PortMoves::advance(std::size_t p) {
  Pair& pair = pairs_[p];
  MovingQueue& back = *pair.back;
  if (back.dead()) return true;
  if (pair.at == At::stopping) {
    if (!back.drained() || !pair.receives_came_back) return false;
    if (!pair.fence) pair.fence = inbox_.fence();
    if (!inbox_.fenced(*pair.fence)) return false;
    // What is told is told once, and an adapter may end it at once over a port that is down.
    if (!renewals_.has_next(p) && ports_.watch(p, 1 - pair.on).down()) return false;
    tell(p);
  }
  if (pair.at == At::told && !pair.heard && renewals_.has_next(p)) {
    if (pair.heard_next)
      pass(p, "the peer has left it");
    else if (ports_.watch(p, 1 - pair.on).down())
      pass(p, "it is down");
  }
  if (back.dead() || !pair.heard || pair.at != At::told) return back.dead();
  if (!back.resume(*pair.heard)) {
    back.fail_unreachable();
    return true;
  }
  const std::int64_t stopped = now_ns() - pair.left;
  TP_INFO(net, "%s goes on over %s after %lld ms", name(p), ports_.name(p, 1 - pair.on),
          static_cast<long long>(stopped / kMillisecond));
  if (counts_ != nullptr) counts_->add(static_cast<std::uint64_t>(stopped));
  arrive(p);
  end(pair);
  renewals_.left(p);
  if (pair.heard) follow(p);
  return true;
}

void PortMoves::tell(std::size_t p) {
  Pair& pair = pairs_[p];
  const PortPairs& to = ports_.queues(p, 1 - pair.on);
  inbox_.move(p, ports_.port(p, 1 - pair.on), to.arrivals(p).qp());
  const auto taken = static_cast<std::uint32_t>(inbox_.taken(p));
  pair.at = At::told;
  pair.fence.reset();
  pair.skipped = false;
  if (ports_.to_itself(p))
    pair.heard = taken;
  else if (!post_immediate(to.pair(p)->qp(), WorkRequestId::of(p, WorkRequestId::kTaken), taken))
    pass(p, "nothing can be posted");
}

void PortMoves::pass(std::size_t p, const char* why) {
  Pair& pair = pairs_[p];
  const int by = 1 - pair.on;
  if (pair.at != At::told || !renewals_.has_next(p)) {
    TP_WARN("%s cannot go on over %s: %s", name(p), ports_.name(p, by), why);
    return pair.back->fail_unreachable();
  }
  TP_WARN("%s does not stay on %s: %s", name(p), ports_.name(p, by), why);
  pair.at = At::stopping;
  pair.skipped = !pair.heard;
  pair.limit.emplace(move_limit(ports_.core.config()));
  quit(p, by);
  pair.back->skip();
  arrive(p);
  renewals_.left(p);
  ask_for_last(p);
}

void PortMoves::renew() {
  renewals_.advance();
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    // What was asked over a queue pair that is made anew is not answered any more.
    if (pair.at == At::asking && !renewals_.ready(p)) pair.at = At::serving;
    if (pair.heard || pair.heard_next) follow(p);
  }
}

void PortMoves::on_completion(int port, const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  const int way = ports_.port(p, port);
  const PortPairs& on_port = ports_.queues(p, way);
  if (on_port.owns_next(p, wc.qp_num)) return on_next(wc);
  if (!on_port.owns(p, wc.qp_num)) return;  // of one that was replaced
  if (WorkRequestId::is_receive(wc)) return on_receive(way, wc);
  if (!WorkRequestId::is(wc, WorkRequestId::kLastReceive)) return on_send(way, wc);
  if (way == pairs_[p].on) pairs_[p].receives_came_back = true;
}

void PortMoves::on_next(const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  const bool works = wc.status == IBV_WC_SUCCESS;
  if (WorkRequestId::is(wc, WorkRequestId::kQuestion)) {
    if (!pairs_[p].under_way() && renewals_.answered(p, works)) may_go_back(p);
  } else if (WorkRequestId::is_receive(wc) && works && !ports_.to_itself(p)) {
    pairs_[p].heard_next = be32toh(wc.imm_data);
    follow(p);
  }
}

void PortMoves::on_receive(int way, const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  Pair& pair = pairs_[p];
  if (ports_.to_itself(p)) return inbox_.on_receive(wc);
  if (wc.status != IBV_WC_SUCCESS) return;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) == 0) return inbox_.on_receive(wc);
  const std::uint32_t immediate = be32toh(wc.imm_data);
  if (way != pair.on && !pair.heard) {
    pair.heard = immediate;
    return follow(p);
  }
  if (way == pair.on && pair.skipped) {  // the number, of which another one will come
    pair.skipped = false;
    return;
  }
  if (!PortRenewals::is_word(immediate)) return inbox_.on_receive(wc);
  if (renewals_.on_word(p, immediate)) may_go_back(p);
  inbox_.give_back(wc);
}

void PortMoves::follow(std::size_t p) {
  renewals_.followed(p);
  if (renewals_.ready(p)) leave(p, pairs_[p].on == 1 ? nullptr : "the peer has left it");
}

void PortMoves::on_send(int way, const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  Pair& pair = pairs_[p];
  const bool works = wc.status == IBV_WC_SUCCESS;
  if (WorkRequestId::is(wc, WorkRequestId::kTaken)) return on_taken(p, way == pair.on, works);
  if (WorkRequestId::is(wc, WorkRequestId::kQuestion)) {
    if (way != pair.on) answered(p, works);
  } else if (!WorkRequestId::is(wc, WorkRequestId::kWord) || !works) {
    // A word that fails is the end of the queue pair as any work request's failure is.
    pair.back->on_completion(wc);
    if (pair.back->stopped()) leave(p, "a work request failed");
  }
}

// `arrived`: it was said over the way that the pair is on.
void PortMoves::on_taken(std::size_t p, bool arrived, bool works) {
  Pair& pair = pairs_[p];
  if (works || (arrived && pair.under_way())) return;  // which is left already
  if (!arrived) return pass(p, "the peer does not hear of it");
  if (pair.back->may_move()) return leave(p, "a work request failed");
  pair.back->fail_unreachable();
}

void PortMoves::answered(std::size_t p, bool answers) {
  Pair& pair = pairs_[p];
  const bool asked = pair.at == At::asking && renewals_.ready(p);
  if (pair.at == At::asking) pair.at = At::serving;
  if (!asked || !answers) {
    if (pair.under_way()) return;  // asked before the pair left, or for what is no way any more
    if (renewals_.answered(p, answers)) may_go_back(p);
  } else if (ports_.watch(p, pair.on).down()) {
    leave(p, "it is down");
  } else {
    pair.stall.answered(ran_.look(now_ns()), renewals_.beat(p));
  }
}

void PortMoves::may_go_back(std::size_t p) {
  const Pair& pair = pairs_[p];
  if (pair.on == 1 && !pair.under_way() && ports_.rank_of(p) <= ports_.core.rank())
    return leave(p, nullptr);
  TP_INFO(net, "%s can move to %s again", name(p), ports_.name(p, 1 - pair.on));
}

}  // namespace twinpath::gda
