// What a receive comm does when its queues are replaced (connect/recovery.h): it takes in all that
// the old ones had brought, tells what it still awaits, and writes again the cells that the sender
// has not seen.
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
    if (r.left_ == 0) continue;
    for (unsigned i = 0; i < r.count_; ++i) {
      RecvRequest::Sub& sub = r.subs_[i];
      if (sub.expected != 0 && sub.arrived == sub.expected) continue;
      held.set_open(r.first_cell_ + i);
      sub.expected = sub.arrived = 0;
      sub.bytes = 0;
      sub.queues = 0;
      if ((r.staged_ >> i & 1) != 0) staged_->restart(static_cast<int>(slot), static_cast<int>(i));
    }
  }
  parcels_ = {};
  return held;
}

std::uint32_t ProxyRecvComm::rails_in_use() const {
  std::uint32_t rails = 0;
  for (const Queue& q : link_->set().queues())
    if (q.qp != nullptr) rails |= 1u << q.rail;
  return rails;
}

int ProxyRecvComm::resume(const HeldState& theirs) {
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
  // A port that is out of use flushes nothing; see flush_failed() for why its data are there.
  const std::uint32_t rails = rails_in_use();
  carried_ &= rails;
  if (flush_.ready() && !flush_.fits(link_->set().rails(), rails)) flush_stale_ = true;
  if (flush_stale_ || rails != (1u << link_->set().rails().size()) - 1) repeat_flushes();
  if (staged_ != nullptr && staged_->busy()) hub_->hold(*this);
  return again;
}

}  // namespace twinpath
