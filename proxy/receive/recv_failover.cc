// What a receive comm does when its queues are replaced (connect/failover.h): it takes in all that
// the old ones had brought, tells what it still awaits, and writes again the cells that the sender
// has not seen.
#include <optional>

#include "plugin/base/log.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

// A halted queue gives all its receives back, behind those that data came for.
bool ProxyRecvComm::drained(QueueMask gone) {
  for (int q = 0; q < link_->queue_count(); ++q)
    if (link_->queue(q).qp != nullptr && (gone & queue_bit(q)) == 0 &&
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
  arrivals_.restart(held);
  return held;
}

// The keys that cells have now.  Cells that the sender has not seen get them here.
Status ProxyRecvComm::reach(FencedNote& note, std::string& why) {
  if (!keys_.change()) return Status::ok;
  const int alone = link_->set().reserve_rail();
  keys_.use(alone);
  note.key_rails = cts_.layout().rails();
  const auto only = alone < 0 ? std::nullopt : std::optional(alone);
  const bool usable = !only || (core_->devices->stand_by(device_, alone) && reachable(alone));
  const bool known = keys_.collect(
      cts_, only.has_value(), note.memory,
      [&](const Memory* memory, std::uint64_t address, std::uint64_t bytes) {
        return core_->devices->key_range(memory, address, bytes, note.key_rails, only);
      });
  cts_.renew_keys(note.memory);
  if (usable && known) return Status::ok;
  why = not_registered_text(link_->set().rails()[static_cast<std::size_t>(alone)]);
  return Status::system;
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
  flushes_.queues_replaced();
  if (arrivals_.copying()) hub_->hold(*this);
  return again;
}

}  // namespace twinpath
