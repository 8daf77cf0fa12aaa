// The clocks of a QP: transport retries, receiver not ready, dead peers, draining.  Looked at by
// the engine thread, so nothing here is finer than a millisecond.
#include <algorithm>
#include <array>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/hca.h"

namespace twinpath::soft {
namespace {

// What a receiver's min_rnr_timer code asks the sender to wait (IB specification vol. 1, table 45).
std::int64_t rnr_wait_ns(std::uint32_t code) {
  constexpr std::array<std::int32_t, 32> kMicroseconds = {
      655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
      480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
      20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
  return kMicroseconds[code % kMicroseconds.size()] * std::int64_t{1000};
}

// An adapter acknowledges by itself; here a process must run for that.  One that lives, with its
// queue pair ready, but does not get a core for a while is no reason for a transport error.  The
// steps by which processes get to know each other start the clock anew, too.
constexpr std::int64_t kLivePeerLimit = 10 * kSecond;

struct FarSide {
  std::uint64_t progress = 0;
  bool dead = false, rnr = false, ready = false;
};

// Whether the peer's process has come to answer: it has greeted us and has read what else we told
// it, such as the offer of a link.  Before that its silence says nothing of its queue pair.
bool hears(const Peer& peer) {
  return peer.greeted.load(std::memory_order_acquire) && peer.wire.is_read();
}

FarSide look_at_peer(SoftQp& qp) {
  FarSide f;
  f.dead = qp.link.unreachable || (qp.link.peer != nullptr && qp.link.peer->dead.load());
  const LinkEnd* const end = qp.link.far();
  if (qp.link.peer != nullptr) {
    qp.link.heard = qp.link.heard || end != nullptr || hears(*qp.link.peer);
    f.progress = qp.link.heard ? 1 : 0;
    f.ready = !qp.link.heard;
  }
  if (end == nullptr) return f;
  // What the peer says is lost: to this end its silence is that of one that is not there.
  if (qp.link.unanswered || qp.link.astray_from_there() || qp.link.astray_to_there()) return f;
  const auto state = static_cast<EndState>(end->state.load(std::memory_order_acquire));
  // The own port comes and goes: a new start for who is there, but one that has gone has no
  // progress by that, and would be waited for as long as the port goes on so.
  const bool gone = state == EndState::closed || state == EndState::error;
  if (qp.link.theirs == nullptr && !gone) return f;
  f.progress += 2 + qp.requester.copied + end->acked.load(std::memory_order_acquire) +
                end->consumed.load(std::memory_order_acquire);
  f.ready = state == EndState::ready;
  // Who is not there does not say that he has no receive either.
  f.rnr = f.ready && end->rnr.load(std::memory_order_acquire) != 0;
  return f;
}

}  // namespace

std::int64_t retry_limit_ns(const SoftQp& qp) {
  if (qp.attr.timeout == 0) return 0;
  return (std::int64_t{qp.attr.retry_cnt} + 1) * (std::int64_t{4096} << qp.attr.timeout);
}

void check_timers(SoftQp& qp, std::int64_t ran) {
  std::unique_lock hold(qp.lock, std::try_to_lock);
  if (!hold.owns_lock() || (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD)) return;
  const bool drained = qp.state == IBV_QPS_SQD && qp.send.is_drained();
  if (drained && qp.drain_event) {
    qp.drain_event = false;
    async_event(qp, IBV_EVENT_SQ_DRAINED);
  }
  if (drained || qp.send.is_empty()) {
    qp.retry.stop();
    return;
  }
  FarSide far = look_at_peer(qp);
  // Copy engines answer for themselves.  Progress of the peer starts the clock anew: packets that
  // it takes, for a message may be thousands of them.
  const bool busy = qp.copies.jobs_in_flight != 0;
  const std::int64_t waited = qp.retry.waited(far.progress, far.rnr, busy, ran);
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (far.dead && !busy && waited > 10 * kMillisecond) {
    // A dead process never answers; the transport's retries would only find it out later.
    status = IBV_WC_RETRY_EXC_ERR;
  } else if (far.rnr) {
    const std::int64_t tries = std::int64_t{qp.attr.rnr_retry} + 1;
    const std::int64_t each =
        rnr_wait_ns(qp.link.theirs->rnr_timer.load(std::memory_order_relaxed));
    if (qp.attr.rnr_retry != 7 && waited > std::max(tries * each, kMillisecond))
      status = IBV_WC_RNR_RETRY_EXC_ERR;
  } else if (std::int64_t limit = retry_limit_ns(qp); limit != 0) {
    if (waited > (far.ready ? std::max(limit, kLivePeerLimit) : limit))
      status = IBV_WC_RETRY_EXC_ERR;
  }
  if (status == IBV_WC_SUCCESS) return;
  qp.send.entry(qp.send.head).status = static_cast<std::uint8_t>(status);
  enter_error(qp);
}

}  // namespace twinpath::soft
