// See rma_moves.h.
#include "gda/rma/rma_moves.h"

#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda::rma {
namespace {

constexpr std::int64_t kLookAtPorts = 2 * kMillisecond;  // a system call

// As long as a port may be down, ns; but time enough for a peer that is only slow.
std::int64_t follow_limit(const Config& config) {
  return std::max(config.failover_hold_ms * kMillisecond, 2 * kSecond);
}

}  // namespace

Moves::Moves(Team& team, Inbox& inbox, const std::vector<std::unique_ptr<Queue>>& queues)
    : team_(team), inbox_(inbox), queues_(queues), moves_(queues.size()) {
  for (const auto& queue : queues) served_ += queue != nullptr ? 1 : 0;
}

// A rank that is gone, or has left and is owed nothing, cannot follow, and need not.
PortWatch& Moves::watch() {
  if (moved_ == 0) return watch(0);
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    const Queue* const queue = queues_[q].get();
    if (queue == nullptr || queue->on() == 1 || queue->failure() != Status::ok) continue;
    if (to_itself(q) || !queue->idle() || !team_.mesh->look(rank_of(q)).left) return watch(0);
  }
  return watch(1);
}

const char* Moves::name(int port) const {
  return (port == 0 ? team_.rail : team_.second->rail).port.port->name.c_str();
}

bool Moves::takes(int port, const ibv_wc& wc, WorkId id) {
  Move& move = moves_[id.queue];
  const bool works = wc.status == IBV_WC_SUCCESS;
  const bool here = port == queues_[id.queue]->on();
  switch (id.what) {
    case WorkId::What::question:
      answered(id.queue, works);
      return true;
    case WorkId::What::taken:
      move.unheard |= !works;
      return true;
    case WorkId::What::last_receive:
      move.receives_came_back = true;
      return true;
    case WorkId::What::receive:
      if (here || !works || move.heard || to_itself(id.queue)) return false;
      move.heard = inbox_.number_in(wc, id);
      if (!move.heard) move.unheard = true;
      leave(id.queue, "the peer has left it");
      return true;
    case WorkId::What::work:
    case WorkId::What::probe:
    case WorkId::What::last_send:
      break;
  }
  return !here;
}

void Moves::turn(std::int64_t now) {
  if (now - looked_ >= kLookAtPorts) look_at_ports(now);
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    if (queues_[q] == nullptr) continue;
    if (queues_[q]->stopped()) leave(q, "a work request failed");
    if (moves_[q].under_way()) advance(q, now);
  }
}

void Moves::look_at_ports(std::int64_t now) {
  looked_ = now;
  if (moved_ == served_ || team_.second->lacks.load(std::memory_order_relaxed) != nullptr) return;
  // A question over a port that is down would be its queue pair's end.
  if (!team_.down(watch(0), now) || team_.down(watch(1), now)) return;
  for (std::size_t q = 0; q < queues_.size(); ++q)
    if (Queue* const queue = queues_[q].get(); queue != nullptr && moves_[q].at == At::serving &&
                                               queue->may_move() && queue->ask_over_other())
      moves_[q].at = At::asking;
}

void Moves::answered(std::size_t q, bool answers) {
  Move& move = moves_[q];
  if (move.at != At::asking) return;  // asked before the queue left
  move.at = At::serving;
  if (!answers) {
    TP_WARN("%s: %s does not reach the peer", queues_[q]->name().c_str(), name(1));
    queues_[q]->cannot_move();
  } else if (team_.down(watch(0), now_ns())) {
    leave(q, "it is down");
  }
}

void Moves::leave(std::size_t q, const char* why) {
  Move& move = moves_[q];
  Queue& queue = *queues_[q];
  if (move.under_way() || queue.failure() != Status::ok) return;
  const char* missing = team_.second->lacks.load(std::memory_order_relaxed);
  if (missing == nullptr && !queue.may_move()) missing = "nobody answers";
  const int from = queue.on(), to = 1 - from;
  if (missing != nullptr) {
    TP_WARN("%s cannot leave %s: %s on %s", queue.name().c_str(), name(from), missing, name(to));
    return queue.fail(Status::remote);
  }
  TP_WARN("%s leaves %s for %s: %s", queue.name().c_str(), name(from), name(to), why);
  move.at = At::stopping;
  move.left = now_ns();
  move.limit.emplace(follow_limit(team_.config()));
  ++moving_;
  queue.stop();
  if (!inbox_.ask_for_last(static_cast<std::uint16_t>(q), from)) queue.fail(Status::remote);
}

void Moves::end(Move& move) {
  move.at = At::serving;
  move.limit.reset();
  --moving_;
}

void Moves::advance(std::size_t q, std::int64_t now) {
  Move& move = moves_[q];
  Queue& queue = *queues_[q];
  if (queue.failure() == Status::ok && (move.unheard || move.limit->over(now))) {
    TP_WARN("%s: the peer has not followed to %s in %lld ms", queue.name().c_str(),
            name(1 - queue.on()), static_cast<long long>((now - move.left) / kMillisecond));
    queue.fail(Status::remote);
  }
  if (queue.failure() != Status::ok) return end(move);
  if (move.at == At::stopping && queue.drained() && move.receives_came_back) tell(q);
  if (move.at != At::told || !move.heard) return;
  if (!queue.resume(*move.heard)) {
    queue.fail(Status::remote);
    return end(move);
  }
  TP_INFO(net, "%s goes on over %s after %lld ms", queue.name().c_str(), name(queue.on()),
          static_cast<long long>((now_ns() - move.left) / kMillisecond));
  inbox_.leave_first_port();
  ++moved_;
  end(move);
}

void Moves::tell(std::size_t q) {
  Move& move = moves_[q];
  const std::uint64_t taken = inbox_.taken(static_cast<std::uint16_t>(q));
  move.at = At::told;
  if (to_itself(q))
    move.heard = taken;
  else if (!queues_[q]->tell_taken(taken))
    move.unheard = true;
}

}  // namespace twinpath::gda::rma
