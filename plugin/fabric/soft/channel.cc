// Completion channels: a CQ is armed once, its next fitting completion puts one event into the
// channel.  Nobody needs to poll for that: an armed CQ has the engine thread woken (bell.cc).
#include <cerrno>

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/objects.h"

namespace twinpath::soft {

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  auto channel = std::make_unique<SoftChannel>();
  static_cast<ibv_comp_channel&>(*channel) = ibv_comp_channel{};
  if (!channel->events.open()) return nullptr;
  channel->context = context;
  channel->fd = channel->events.fd();
  return channel.release();
}

int destroy_comp_channel(ibv_comp_channel* c) {
  SoftChannel* channel = soft(c);
  {
    std::lock_guard hold(channel->users_lock);
    if (channel->refcnt != 0) return EBUSY;
  }
  delete channel;
  return 0;
}

int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  SoftCq* got = nullptr;
  if (soft(channel)->events.pop(got, [](SoftCq* c) { ++c->comp_reported.events; }) != 0) return -1;
  *cq = got;
  *cq_context = got->cq_context;
  return 0;
}

void ack_cq_events(ibv_cq* cq, unsigned count) {
  if (count != 0) acknowledged(cq->mutex, cq->cond, cq->comp_events_completed, count);
}

int req_notify_cq(ibv_cq* c, int solicited_only) {
  SoftCq& cq = *soft(c);
  if (cq.channel == nullptr) return 0;  // nobody to tell
  {
    std::lock_guard hold(cq.lock);
    if (solicited_only == 0) {
      cq.armed = Armed::any;
    } else if (cq.armed == Armed::no) {
      cq.armed = Armed::solicited;  // never weakens an arming for any completion
    }
  }
  std::lock_guard hold(cq.members_lock);
  // Those that sleep are marked when something comes, and that wakes the engine too.
  for (SoftQp* qp : cq.awake) want_bell(*qp, true);
  return 0;
}

void notify(SoftCq& cq, const ibv_wc& wc, bool solicited) {
  // A failed completion counts as solicited (IB specification vol. 1, 11.4.2.2).
  if (cq.armed == Armed::solicited && !solicited && wc.status == IBV_WC_SUCCESS) return;
  cq.armed = Armed::no;
  soft(cq.channel)->events.push(&cq);
}

void end_channel_use(SoftCq& cq) {
  SoftChannel* channel = soft(cq.channel);
  if (channel == nullptr) return;
  const std::uint32_t reported = channel->events.withdraw([&](const SoftCq* c) { return c == &cq; },
                                                          [&] { return cq.comp_reported.events; });
  wait_acknowledged(cq.mutex, cq.cond, cq.comp_events_completed, reported);
  std::lock_guard hold(channel->users_lock);
  --channel->refcnt;
}

}  // namespace twinpath::soft
