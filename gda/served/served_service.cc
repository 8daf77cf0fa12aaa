// What the engine does for a context.
#include <sched.h>

#include <array>

#include "gda/served/served_context.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

// Of one queue in a turn, so that a busy queue does not starve the others.
constexpr int kBudget = 64;
constexpr int kPollBatch = 32;
constexpr int kPollsPerTurn = 4;

}  // namespace

bool ServedContext::turn() {
  bool moved = false;
  if (asked_to_give_up_.load(std::memory_order_relaxed)) scan_->wake_all();
  const std::size_t pairs = shape_.pairs();
  look_for_failures_ |= scan_->pass(0, pairs, [&](std::size_t q) { return visit_main(q, moved); });
  moved |= poll();
  if (moves_ != nullptr && moves_->under_way() && moves_->advance()) {
    scan_->wake_all();
    look_for_failures_ = moved = true;
  }
  if (moves_ != nullptr && moves_->renewing()) moves_->renew();
  moved |= flush();
  // Last: they may wait for what the others have come to.
  look_for_failures_ |= scan_->pass(
      pairs, shape_.queues(), [&](std::size_t q) { return visit_companion(q - pairs, moved); });
  moved |= cqs_->send();
  if (look_for_failures_) note_failures();
  let_go_.turn();
  return moved;
}

// Both say whether the queue must be visited again although its doorbell stays as it is.
bool ServedContext::visit_main(std::size_t pair, bool& moved) {
  MainQueue* const main = mains_[pair].get();
  if (main == nullptr) return false;
  if (main->give_up.load(std::memory_order_relaxed)) main->fail_all(Syndrome::flushed);
  if (main->back_end.replaying()) main->back_end.replay();
  moved |= main->queue.scan(kBudget) != 0;
  moved |= main->poll();
  if (main->back_end.stopped()) moves_->leave(pair, "posting a work request failed");
  return !main->resting();
}

bool ServedContext::visit_companion(std::size_t pair, bool& moved) {
  Companion* const companion = companions_[pair].get();
  if (companion == nullptr) return false;
  moved |= companion->queue.scan(kBudget) != 0;
  return !companion->queue.resting();
}

bool ServedContext::poll() {
  bool moved = false;
  for (const auto& port : ports_) {
    int n = port != nullptr ? kPollBatch : 0;
    for (int i = 0; i < kPollsPerTurn && n == kPollBatch; ++i) {
      n = poll(*port);
      moved |= n > 0;
    }
  }
  return moved;
}

int ServedContext::poll(const PortQueues& port) {
  std::array<ibv_wc, kPollBatch> wcs;
  const int n = ibv_poll_cq(port.cq(), kPollBatch, wcs.data());
  if (n < 0) fail_all(Syndrome::local_qp_operation);
  look_for_failures_ |= n > 0;
  for (int c = 0; c < n; ++c) {
    const ibv_wc& wc = wcs[static_cast<std::size_t>(c)];
    const std::size_t p = WorkRequestId::pair(wc);
    if (moves_ == nullptr || !moves_->has(p)) {
      on_first(wc);
      continue;
    }
    moves_->on_completion(&port == ports_[0].get() ? 0 : 1, wc);
    scan_->wake(p);
  }
  return n;
}

void ServedContext::on_first(const ibv_wc& wc) {
  if (WorkRequestId::is_receive(wc)) {
    if (inbox_ != nullptr) inbox_->on_receive(wc);
    return;
  }
  const std::size_t p = WorkRequestId::pair(wc);
  if (p >= mains_.size() || mains_[p] == nullptr) return;
  mains_[p]->back_end.on_completion(wc);
  scan_->wake(p);
}

// After poll(): one READ for all that it has found.  Then what may be added, which may wait for it.
bool ServedContext::flush() {
  bool moved = false, works = true;
  if (flush_ != nullptr && flush_->under_way()) {
    if (flush_->turn())
      for (auto& main : mains_)
        if (main != nullptr) main->back_end.settle();
    moved = works = !flush_->dead();
  }
  if (inbox_ != nullptr && inbox_->adder().busy()) {
    moved = true;
    works &= inbox_->adder().turn();
  }
  if (!works && !let_go_.given_up()) {
    fail_all(Syndrome::local_qp_operation);
    give_up_everywhere();
  }
  return moved;
}

void ServedContext::note_failures() {
  look_for_failures_ = false;
  for (std::size_t p = 0; p < mains_.size(); ++p) {
    MainQueue* main = mains_[p].get();
    if (main != nullptr && main->queue.failed() && !main->failure_seen)
      failed_queue(p, "queue", main->failure_seen);
  }
  for (std::size_t p = 0; p < companions_.size(); ++p) {
    Companion* companion = companions_[p].get();
    if (companion != nullptr && companion->queue.failed() && !companion->failure_seen)
      failed_queue(p, "counter queue", companion->failure_seen);
  }
}

void ServedContext::failed_queue(std::size_t pair, const char* which, bool& seen) {
  seen = true;
  const bool first = let_go_.queue_failed(pair);
  // The peer, or the way to it, is gone; its own connection may not have noticed.  Nor have the
  // kernels of other ranks, that one's above all, which wait for what will not come from here.
  if (mains_[pair]->unreachable() && !let_go_.given_up()) give_up_everywhere();
  // The back end has told already; and kernels that were let go overrun their queues.
  if (!first || mains_[pair]->dead()) return;
  TP_WARN(
      "GIN %s of rank %d to %s: a kernel wrote a work request that is not allowed (window, offset, "
      "signal or queue index); the communicator cannot be used any more",
      which, core_->rank(), core_->mesh->peer_text(rank_of(pair)).c_str());
}

void ServedContext::look_around() {
  if (cqs_->dead() && !let_go_.given_up()) {
    fail_all(Syndrome::local_qp_operation);
    give_up_everywhere();
  }
  const std::int64_t now = now_ns();
  const bool moving = moves_ != nullptr && moves_->under_way();  // which has a limit of its own
  if (!let_go_.given_up() && !moving) {
    if (moves_ != nullptr ? moves_->lost(now) : core_->lost_port(now)) {
      fail_all(Syndrome::retry_exceeded);
      return give_up();
    }
    if (moves_ != nullptr) moves_->looked(now);
  }
  for (int rank = 0; rank < shape_.ranks && !peer_died_; ++rank)
    if (rank != core_->rank()) look_at(rank, now);
}

// The adapter's word that the port is down comes long before a queue's retries are over.
void ServedContext::glance() {
  if (moves_ == nullptr || let_go_.given_up()) return;
  if (moves_->news())
    look_around();
  else
    moves_->look_for_stalls(now_ns());
}

// Something is always expected of a peer: what kernels wait for is not seen here.  So a silent one
// must answer a probe, over the first of the queues to it.
void ServedContext::look_at(int rank, std::int64_t now) {
  const Mesh::PeerState state = core_->mesh->look(rank);
  MainQueue* const main = mains_[static_cast<std::size_t>(rank)].get();
  const bool asked = main != nullptr && !state.left;
  const std::uint64_t progress = main == nullptr ? 0 : main->back_end.answers() + main->finished();
  const Verdict verdict = peer(rank).watch.look(state.sign, state.silence_ms, now, asked, progress);
  if (verdict == Verdict::fine) return;
  if (verdict == Verdict::suspect) {
    main->ask();  // which may find that the queue pair is gone
    scan_->wake(static_cast<std::size_t>(rank));
    return;
  }
  peer_died_ = true;
  TP_WARN("%s is gone: %s; kernels that wait for it are let go",
          core_->mesh->peer_text(rank).c_str(), core_->mesh->verdict_text(rank, verdict).c_str());
  fail_all(Syndrome::retry_exceeded, rank);
  give_up();
}

void ServedContext::fail_all(Syndrome syndrome, int peer) {
  for (auto& main : mains_)
    if (main != nullptr && (peer < 0 || main->queue.peer() == peer)) main->fail_all(syndrome);
  scan_->wake_all();
}

// What ends this context is news to the other ranks: their kernels wait for what ours would send.
void ServedContext::give_up_everywhere() {
  core_->mesh->give_up();
  give_up();
}

// Nothing will come of this context any more: all its kernels are let go.
void ServedContext::give_up() {
  let_go_.give_up();
  note_failures();
  let_go_.release_all();
}

void ServedContext::settle(RunClock& waited, std::int64_t limit) {
  if (flush_ != nullptr) {
    const std::uint64_t posted = flush_->posted();
    while (!flush_->settled(posted) && waited.look(now_ns()) < limit) sched_yield();
  }
  if (inbox_ != nullptr) {
    // Copies always end by themselves.
    const std::int64_t end = core_->verbs().ordered ? SoftBackEnd::kCopyLimit : limit;
    const std::uint64_t came = inbox_->adder().came();
    while (inbox_->adder().added() < came && waited.look(now_ns()) < end) sched_yield();
  }
  for (auto& main : mains_) {
    if (main == nullptr) continue;
    const std::uint64_t target = main->issued();
    while (!main->ended(target)) {
      if (waited.look(now_ns()) > limit) {
        main->give_up.store(true, std::memory_order_relaxed);
        asked_to_give_up_.store(true, std::memory_order_relaxed);
      }
      sched_yield();
    }
  }
}

}  // namespace twinpath::gda
