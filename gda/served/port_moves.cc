// See port_moves.h; gda/served/back/replay.h says what is sent again.
#include "gda/served/port_moves.h"

#include <endian.h>

#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// As long as a port may be down, ns; but time enough for a peer that is only slow.
std::int64_t follow_limit(const Config& config) {
  return std::max(config.failover_hold_ms * kMillisecond, 2 * kSecond);
}

bool post_taken(ibv_qp* qp, std::size_t pair, std::uint32_t taken) {
  ibv_send_wr wr{};
  wr.wr_id = WorkRequestId::of(pair, WorkRequestId::kTaken);
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = htobe32(taken);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

}  // namespace

PortMoves::PortMoves(GinCore& core, std::size_t ranks, CountedInbox& inbox, const PortQueues& first,
                     std::unique_ptr<PortQueues> second)
    : core_(core),
      ranks_(ranks),
      inbox_(inbox),
      first_(first),
      second_(std::move(second)),
      pairs_(second_->size(),
             Pair(StallWatch(core.config().stall_ms, core.rail.port.port->speed_mbps))) {
  for (std::size_t p = 0; p < pairs_.size(); ++p) served_ += first_.pair(p) != nullptr ? 1 : 0;
}

Status PortMoves::raise(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
  // Its log says why.  Without a second port the queues are as good.
  if (second_->raise(p, far, peer, here) != Status::ok)
    core_.second->lacks.store("a rank is not reached", std::memory_order_relaxed);
  return inbox_.prepare(p, second_->arrivals(p).qp(), CountedInbox::kReceives + 1);
}

void PortMoves::looked(std::int64_t now) {
  (void)core_.second->watch.look(now);
  down_ = watch().down();
  if (!down_) return look_for_stalls(now);
  for (std::size_t p = 0; p < pairs_.size(); ++p) ask(p);
}

// A question over a port that is down would be its queue pair's end.
bool PortMoves::may_ask(const Pair& pair) const {
  return core_.second->lacks.load(std::memory_order_relaxed) == nullptr &&
         !core_.second->watch.down() && pair.back != nullptr && pair.at == At::first &&
         pair.back->may_move();
}

void PortMoves::ask(std::size_t p) {
  Pair& pair = pairs_[p];
  if (!may_ask(pair)) return;
  const std::uint64_t id = WorkRequestId::of(p, WorkRequestId::kQuestion);
  if (post_probe(second_->pair(p)->qp(), id, pair.probed)) pair.at = At::asking;
}

void PortMoves::look_for_stalls(std::int64_t now) {
  if (now - stalls_looked_ < core_.config().stall_ms * kMillisecond / 16) return;
  stalls_looked_ = now;
  const std::int64_t ran = ran_.look(now);
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (!may_ask(pair)) continue;
    const std::uint64_t issued = pair.back->issued(), finished = pair.back->finished();
    const std::uint64_t bytes = issued == finished ? 0 : pair.back->bytes_under_way();
    switch (pair.stall.look(ran, issued, finished, bytes)) {
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
  if (pair.under_way() || pair.at == At::second || pair.back->dead()) return;
  if (const char* lacks = core_.second->lacks.load(std::memory_order_relaxed); lacks != nullptr) {
    TP_WARN("%s cannot leave %s: %s on %s", name(p), core_.rail.port.port->name.c_str(), lacks,
            second_name().c_str());
    return pair.back->fail_unreachable();
  }
  TP_WARN("%s leaves %s for %s: %s", name(p), core_.rail.port.port->name.c_str(),
          second_name().c_str(), why);
  pair.at = At::stopping;
  pair.left = now_ns();
  pair.limit.emplace(follow_limit(core_.config()));
  ++moving_;
  first_.stop(p);
  pair.back->stop();
  if (!inbox_.stop(p)) pair.back->fail_unreachable();
}

void PortMoves::end(Pair& pair) {
  pair.at = At::second;
  --moving_;
  ++moved_;
}

void PortMoves::count(const Pair& pair) {
  counters::GinCounts& counts = core_.engine->counts();
  const auto stopped = static_cast<std::uint64_t>(now_ns() - pair.left);
  counts.moves.add(1);
  counts.moved_ns.add(stopped);
  counts.longest_move_ns.set(std::max(counts.longest_move_ns.get(), stopped));
}

bool PortMoves::advance() {
  bool moved = false;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (!pair.under_way()) continue;
    if (!pair.back->dead() && pair.limit->over(now_ns())) {
      TP_WARN("%s: the peer has not followed to %s in %lld ms", name(p), second_name().c_str(),
              static_cast<long long>(follow_limit(core_.config()) / kMillisecond));
      pair.back->fail_unreachable();
    }
    moved |= advance(p);
    if (pair.back->dead() && pair.under_way()) end(pair);
  }
  return moved;
}

bool PortMoves::advance(std::size_t p) {
  Pair& pair = pairs_[p];
  VerbsBackEnd& back = *pair.back;
  if (back.dead()) return true;
  if (pair.at == At::stopping) {
    if (!back.drained() || !pair.receives_came_back) return false;
    inbox_.move(p, second_->arrivals(p).qp());
    const auto taken = static_cast<std::uint32_t>(inbox_.taken(p));
    pair.at = At::told;
    if (to_itself(p))
      pair.heard = taken;
    else if (!post_taken(second_->pair(p)->qp(), p, taken))
      back.fail_unreachable();
  }
  if (back.dead() || !pair.heard) return back.dead();
  if (!back.resume(*pair.heard)) {
    back.fail_unreachable();
    return true;
  }
  TP_INFO(net, "%s goes on over %s after %lld ms", name(p), second_name().c_str(),
          static_cast<long long>((now_ns() - pair.left) / kMillisecond));
  count(pair);
  end(pair);
  return true;
}

void PortMoves::on_completion(const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  if (p >= pairs_.size() || pairs_[p].back == nullptr) return;
  if (CountedInbox::is_receive(wc)) return on_receive(wc);
  on_send(wc);
}

void PortMoves::on_receive(const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  if (pairs_[p].heard || to_itself(p)) return inbox_.on_receive(wc);
  if (wc.status != IBV_WC_SUCCESS) return;
  pairs_[p].heard = be32toh(wc.imm_data);
  leave(p, "the peer has left it");
}

void PortMoves::on_send(const ibv_wc& wc) {
  const std::size_t p = WorkRequestId::pair(wc);
  Pair& pair = pairs_[p];
  const bool works = wc.status == IBV_WC_SUCCESS;
  if (WorkRequestId::is(wc, WorkRequestId::kTaken)) {
    if (!works) pair.back->fail_unreachable();
  } else if (!WorkRequestId::is(wc, WorkRequestId::kQuestion)) {
    pair.back->on_completion(wc);
  } else if (pair.at == At::asking && works && down_) {
    leave(p, "it is down");
  } else if (pair.at == At::asking && works) {
    pair.at = At::first;
    pair.stall.answered(ran_.look(now_ns()));
  } else if (pair.at == At::asking) {
    TP_INFO(net, "%s stays: %s does not reach it either", name(p), second_name().c_str());
  }
}

}  // namespace twinpath::gda
