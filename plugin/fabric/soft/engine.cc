// The engine thread: greets peers, passes links and CUDA handles, notices deaths (messages.cc,
// peer_sockets.cc), keeps the retry clocks, and advances QPs whose owners are not polling.
//
// It sleeps most of the time (engine_rest.h).  A process that polls its CQs moves its own QPs; the
// engine only looks in once a millisecond then, so that two polling processes keep two cores for
// themselves.  For owners that do not poll, peers wake it (bell.cc).  QPs that have nothing to do
// are not looked at (activity.cc), and when none has, the engine waits to be woken.
#include "plugin/base/clock.h"
#include "plugin/base/cpus.h"
#include "plugin/base/event_wait.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {

// Whether nobody would notice what comes in: the owner waits for an event, or does not poll.
bool Hca::unattended(const SoftQp& qp) {
  const SoftCq &s = *soft(qp.send_cq), &r = *soft(qp.recv_cq);
  const auto armed = [](const SoftCq& cq) {
    return cq.armed.load(std::memory_order_relaxed) != Armed::no;
  };
  return armed(s) || armed(r) || (s.idle && r.idle);
}

int Hca::sweep(std::int64_t now) {
  std::lock_guard hold(lock_);
  bool moved = false;
  (void)activity_.get_up_marked(keys_->board(), qps_.by_index(),
                                now);  // those put back keep us from resting
  activity_.note_idle(now);
  const std::int64_t ran = ran_.look(now);
  const bool rings = !rest_.looks_on(now);
  for (SoftQp* qp : activity_.awake()) {
    // First the bell, then the look: what comes later rings.
    if (rings && unattended(*qp)) want_bell(*qp, false);
    moved = advance(*qp) || moved;
    check_timers(*qp, ran);
    activity_.look(*qp, now);
  }
  activity_.put_to_sleep(now);
  return rest_.wait_us(now, moved, activity_.awake().empty() && !keys_->board().any());
}

void Hca::keep_failing_port(std::int64_t now) {
  const auto which = static_cast<std::size_t>(faults_.failing_device());
  SoftDevice* device = nullptr;
  {
    const std::lock_guard hold(lock_);
    if (which < devices_.shown().size()) device = devices_.shown()[which];
  }
  const bool up = faults_.is_failing_port_up(now);
  if (device != nullptr) set_port(*device, 1, up);
}

void Hca::engine_loop() {
  EventWait waiter("soft HCA");
  rest_.set_cpus(place_helper(config_.helper_cpus, {}));
  int wait_us = 1000;
  for (;;) {
    sockets_.serve(waiter, wait_us, *this);
    const std::int64_t now = now_ns();
    if (faults_.failing_device() >= 0) keep_failing_port(now);
    wait_us = sweep(now);
  }
}

}  // namespace twinpath::soft
