// What a receive comm does when its queues are replaced (connect/recovery.h): it takes in all that
// the old ones had brought, tells what it still awaits, and writes again the cells that the sender
// has not seen.
#include <algorithm>
#include <optional>

#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

// A halted queue gives all its receives back, behind those that data came for.
bool ProxyRecvComm::drained() {
  for (int q = 0; q < link_->queue_count(); ++q)
    if (link_->queue(q).qp != nullptr &&
        unposted_[static_cast<std::size_t>(q)] < link_->set().receive_depth())
      return false;
  return true;
}

// Cells: what comes of them says that they arrived, and nothing else does.  Those that wait for
// room in the send queue wait for acknowledgements.
AtRisk ProxyRecvComm::at_risk() {
  return {cts_.posted() != cts_.ended() || cts_.held() > 0, cts_.posted(), 0};
}

HeldState ProxyRecvComm::held() {
  HeldState held;
  held.begin = cts_.ended();
  held.end = cts_.added();
  for (std::size_t slot = 0; requests_.made(slot); ++slot) {
    RecvRequest& r = requests_.at(slot);
    if (r.left() == 0) continue;
    for (unsigned i = 0; i < r.count_; ++i) {
      RecvRequest::Sub& sub = r.subs_[i];
      if (sub.state.complete()) continue;
      held.set_open(r.first_cell_ + i);
      sub.state.expected = sub.state.arrived = 0;
      sub.state.sized = false;
      if ((r.staged_ >> i & 1) != 0) staged_->restart(static_cast<int>(slot), static_cast<int>(i));
    }
  }
  parcels_ = {};
  return held;
}

// The keys that cells have now: of those that wait first, then of older ones, which an answer
// without notice may still be on its way for.  Cells that the sender has not seen get them here.
Status ProxyRecvComm::reach(FencedNote& note, std::string& why) {
  if (cell_memory_ == nullptr) return Status::ok;
  const int alone = link_->set().reserve_rail();
  first_key_rail_ = std::max(alone, 0);
  key_rail_mask_ = alone < 0 ? ~0 : 0;
  note.key_rails = cts_.layout().rails();
  const std::uint64_t first = cts_.added() - std::min<std::uint64_t>(cts_.added(), kCtsCells);
  bool known = alone < 0 || (core_->devices->stand_by(device_, alone) && reachable(alone));
  const auto add = [&](std::uint64_t seq, bool waits) {
    const CellView cell(cts_.cell(seq));
    if (cell.bytes() == 0) return;
    for (const KeyRange& range : note.memory)
      if (range.covers(cell.address(), cell.bytes())) return;
    const auto range =
        core_->devices->key_range((*cell_memory_)[cts_place(seq)], cell.address(), cell.bytes(),
                                  note.key_rails, alone < 0 ? std::nullopt : std::optional(alone));
    if (range) note.memory.push_back(*range);
    if (waits && alone >= 0) known = known && range && range->rkeys[0] != 0;
  };
  for (std::uint64_t seq = cts_.ended(); seq != cts_.added(); ++seq) add(seq, true);
  for (std::uint64_t seq = first; seq < cts_.ended(); ++seq) add(seq, false);
  if (!known) why = link_->not_registered(alone);
  cts_.renew_keys(note.memory);
  return known ? Status::ok : Status::system;
}

// Whether the connection's own memory can be used over that rail: cells inline as before, or out of
// the shadow, and the peer's ring.
bool ProxyRecvComm::reachable(int rail) {
  const Queue& queue = link_->queue(link_->set().first());
  return link_->rkey(queue) != 0 &&
         (shadow_ != nullptr ? shadow_->lkey(rail) != 0
                             : cts_.layout().wire_bytes(1) <= queue.inline_bytes);
}

int ProxyRecvComm::resume(const FencedNote& note) {
  const HeldState& theirs = note.held;
  if (theirs.begin < cts_.ended() || theirs.begin > cts_.posted()) {
    link_->fail("it says that it has seen %llu clear-to-send cells of %llu",
                static_cast<unsigned long long>(theirs.begin),
                static_cast<unsigned long long>(cts_.posted()));
    return -1;
  }
  const auto again = static_cast<int>(cts_.posted() - theirs.begin);
  const Queue& queue = link_->queue(link_->set().first());
  cts_.restart(queue, link_->rkey(queue), theirs.begin);
  post_cells();
  // What a rail brought that is out of use now is still to be flushed: by time (landed_by), as
  // nothing is read through it.
  const std::uint32_t rails = link_->set().rails_in_use();
  if (flush_.ready() && !flush_.fits(link_->set().rails(), rails)) flush_stale_ = true;
  if (flush_stale_ || rails != link_->set().regular_rails()) repeat_flushes();
  if (staged_ != nullptr && staged_->busy()) hub_->hold(*this);
  return again;
}

}  // namespace twinpath
