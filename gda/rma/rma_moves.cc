// See rma_moves.h.
#include "gda/rma/rma_moves.h"

#include "gda/served/back/work_request_id.h"
#include "plugin/base/clock.h"
#include "plugin/base/counter_page.h"

namespace twinpath::gda::rma {
namespace {

constexpr std::int64_t kLookAtPorts = 2 * kMillisecond;  // system calls

counters::MoveCounts* counts_of(const Team& team) {
  const auto& page = team.devices->counters();
  return page != nullptr ? &page->rma() : nullptr;
}

}  // namespace

Moves::Moves(Team& team, Inbox& inbox, const std::vector<std::unique_ptr<Queue>>& queues,
             PortSide& first, PortSide& second)
    : team_(team),
      inbox_(inbox),
      queues_(queues),
      moves_({team, static_cast<std::size_t>(team.ranks()), first, second}, *this,
             counts_of(team)) {}

// A rank that is gone, or has left and is owed nothing, cannot follow, and need not.
bool Moves::serves(int port) const {
  const auto ranks = static_cast<std::size_t>(team_.ranks());
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    const Queue* const queue = queues_[q].get();
    if (queue == nullptr || queue->port() != port || queue->dead()) continue;
    const auto rank = static_cast<int>(q % ranks);
    if (rank == team_.rank() || !queue->idle() || !team_.mesh->look(rank).left) return true;
  }
  return false;
}

void Moves::turn(std::int64_t now) {
  if (now - looked_ >= kLookAtPorts) {
    looked_ = now;
    moves_.looked(now);
  }
  for (std::size_t q = 0; q < queues_.size(); ++q)
    if (queues_[q] != nullptr && queues_[q]->stopped() && has(q))
      moves_.leave(q, "posting a work request failed");
  if (moves_.under_way()) (void)moves_.advance();
  if (moves_.renewing()) moves_.renew();
}

void Moves::on_receive(const ibv_wc& wc) {
  Queue& queue = *queues_[WorkRequestId::pair(wc)];
  if (!inbox_.on_receive(wc, queue.name())) queue.fail_unreachable();
}

}  // namespace twinpath::gda::rma
