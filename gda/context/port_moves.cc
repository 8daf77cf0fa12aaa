// See port_moves.h; gda/back/replay.h says what is sent again.
#include "gda/context/port_moves.h"

#include <endian.h>

#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// In place of a work request's number: the question whether the second way is one, and the word to
// the peer.
constexpr std::uint64_t kNumber = CountedInbox::kReceiveId;  // all bits of it
constexpr std::uint64_t kQuestion = kNumber - 16;
constexpr std::uint64_t kTaken = kNumber - 17;

std::uint64_t wr_id(std::size_t pair, std::uint64_t number) {
  return std::uint64_t{pair} << 48 | number;
}

bool post_taken(ibv_qp* qp, std::size_t pair, std::uint32_t taken) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id(pair, kTaken);
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = htobe32(taken);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

}  // namespace

std::string PortMoves::text(std::size_t pair) const {
  const bool own = to_itself(pair);
  return "GIN queue of rank " + std::to_string(core_.rank()) + " to " +
         (own ? std::string("itself") : core_.mesh->peer_text(static_cast<int>(pair % ranks_)));
}

std::int64_t PortMoves::limit_ms() const {
  constexpr std::int64_t kLeast = 2000;
  return std::max<std::int64_t>(core_.config().failover_hold_ms, kLeast);
}

bool PortMoves::all_moved() const {
  for (std::size_t p = 0; p < pairs_.size(); ++p)
    if (first_.pair(p) != nullptr && pairs_[p].at != At::second) return false;
  return true;
}

Status PortMoves::raise(std::size_t p, const QueueEnd& far, const std::string& peer, bool here) {
  // Its log says why.  Without a second port the queues are as good.
  if (second_->raise(p, far, peer, here) != Status::ok)
    core_.second->lacks.store("a rank is not reached", std::memory_order_relaxed);
  return inbox_.prepare(p, second_->arrivals(p).qp(), CountedInbox::kReceives + 1);
}

void PortMoves::ask() {
  if (core_.second->lacks.load(std::memory_order_relaxed) != nullptr) return;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (pair.back == nullptr || pair.at != At::first || !pair.back->may_move()) continue;
    if (post_probe(second_->pair(p)->qp(), wr_id(p, kQuestion), pair.probed)) pair.at = At::asking;
  }
}

void PortMoves::leave(std::size_t p, const char* why) {
  Pair& pair = pairs_[p];
  if (pair.under_way() || pair.at == At::second || pair.back->dead()) return;
  if (const char* lacks = core_.second->lacks.load(std::memory_order_relaxed); lacks != nullptr) {
    TP_WARN("%s cannot leave %s: %s on %s", text(p).c_str(), core_.rail.port.port->name.c_str(),
            lacks, second_name().c_str());
    return pair.back->fail_unreachable();
  }
  TP_WARN("%s leaves %s for %s: %s", text(p).c_str(), core_.rail.port.port->name.c_str(),
          second_name().c_str(), why);
  pair.at = At::stopping;
  pair.limit.emplace(limit_ms() * kMillisecond);
  ++moving_;
  first_.stop(p);
  pair.back->stop();
  if (!inbox_.stop(p)) pair.back->fail_unreachable();
}

void PortMoves::end(Pair& pair) {
  pair.at = At::second;
  --moving_;
}

bool PortMoves::advance() {
  bool moved = false;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    Pair& pair = pairs_[p];
    if (!pair.under_way()) continue;
    if (!pair.back->dead() && pair.limit->over(now_ns())) {
      TP_WARN("%s: the peer has not followed to %s in %lld ms", text(p).c_str(),
              second_name().c_str(), static_cast<long long>(limit_ms()));
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
  TP_INFO(net, "%s goes on over %s", text(p).c_str(), second_name().c_str());
  end(pair);
  return true;
}

void PortMoves::on_completion(const ibv_wc& wc) {
  const std::size_t p = wc.wr_id >> 48;
  if (p >= pairs_.size() || pairs_[p].back == nullptr) return;
  if (CountedInbox::is_receive(wc)) return on_receive(wc);
  on_send(wc);
}

void PortMoves::on_receive(const ibv_wc& wc) {
  const std::size_t p = wc.wr_id >> 48;
  if (pairs_[p].heard || to_itself(p)) return inbox_.on_receive(wc);
  if (wc.status != IBV_WC_SUCCESS) return;
  pairs_[p].heard = be32toh(wc.imm_data);
  leave(p, "the peer has left it");
}

void PortMoves::on_send(const ibv_wc& wc) {
  Pair& pair = pairs_[wc.wr_id >> 48];
  const std::uint64_t number = wc.wr_id & kNumber;
  const bool works = wc.status == IBV_WC_SUCCESS;
  if (number == kTaken) {
    if (!works) pair.back->fail_unreachable();
  } else if (number != kQuestion) {
    pair.back->on_completion(wc);
  } else if (pair.at == At::asking && works) {
    leave(wc.wr_id >> 48, "it is down");
  } else if (pair.at == At::asking) {
    TP_INFO(net, "%s stays: %s does not reach it either", text(wc.wr_id >> 48).c_str(),
            second_name().c_str());
  }
}

}  // namespace twinpath::gda
