// What is asked of a context, and what drives it; made in rma_setup.cc.
#include "gda/rma/rma_context.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"

namespace twinpath::gda::rma {
namespace {

constexpr int kPollBatch = 32;
constexpr int kPollsPerTurn = 4;
constexpr std::int64_t kLookEvery = kSecond / 10;

}  // namespace

Status Request::test(bool& done) { return context->test(*this, done); }

Queue* Context::find(const char* what, int context, int rank) {
  if (context < 0 || context >= settings_.contexts || rank < 0 || rank >= ranks()) {
    TP_WARN("%s: context %d of %d, rank %d of %d", what, context, settings_.contexts, rank,
            ranks());
    return nullptr;
  }
  Queue* const queue = queues_[number(context, rank)].get();
  if (queue == nullptr)
    TP_WARN("%s: rank %d is not spoken to in a context of stride %d made by rank %d", what, rank,
            settings_.rank_stride, team_->rank());
  return queue;
}

// `rank` -1: this end's memory.
bool Context::place(const char* what, const RmaPlace& place, std::uint64_t bytes, int rank,
                    std::uint64_t& address, PortKeys& keys) const {
  const auto* const window = static_cast<const Window*>(place.window);
  if (window == nullptr || !window->of(*team_)) {
    TP_WARN("%s: %s", what,
            window == nullptr ? "no window for the bytes" : "a window of another communicator");
    return false;
  }
  const KeyedMemory& memory = rank < 0 ? window->local() : window->remote(rank);
  if (bytes > memory.bytes || place.offset > memory.bytes - bytes) {
    TP_WARN("%s: %llu bytes at offset %llu are outside the window of %llu bytes of %s", what,
            static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(place.offset),
            static_cast<unsigned long long>(memory.bytes),
            rank < 0 ? "this rank" : team_->mesh->peer_text(rank).c_str());
    return false;
  }
  address = memory.address + place.offset;
  keys = {memory.fabric_key, memory.second_key};
  return true;
}

Result<RmaRequest*> Context::put(int context, int rank, const RmaTransfer& transfer,
                                 const RmaSignal* signal) {
  Queue* const queue = find("put", context, rank);
  if (queue == nullptr) return Status::bad_argument;
  Work work;
  work.bytes = transfer.bytes;
  work.flushes = transfer.bytes != 0 && rank == team_->rank();
  if (transfer.bytes != 0 &&
      (!place("put", transfer.local, transfer.bytes, -1, work.local, work.lkey) ||
       !place("put", transfer.remote, transfer.bytes, rank, work.remote, work.rkey)))
    return Status::bad_argument;
  if (signal != nullptr) {
    if (!place("signal", signal->at, sizeof(std::uint64_t), rank, work.signal, work.signal_rkey))
      return Status::bad_argument;
    if (work.signal % sizeof(std::uint64_t) != 0) {
      TP_WARN("signal: offset %llu is not that of an aligned word of 8 bytes",
              static_cast<unsigned long long>(signal->at.offset));
      return Status::bad_argument;
    }
    work.signals = true;
    work.message = {static_cast<const Window*>(signal->at.window)->number(), signal->at.offset,
                    signal->add};
  }
  return start(*queue, work);
}

Result<RmaRequest*> Context::get(int context, int rank, const RmaTransfer& transfer) {
  Queue* const queue = find("get", context, rank);
  if (queue == nullptr) return Status::bad_argument;
  Work work;
  work.kind = Work::Kind::read;
  work.bytes = transfer.bytes;
  if (transfer.bytes != 0 &&
      (!place("get", transfer.local, transfer.bytes, -1, work.local, work.lkey) ||
       !place("get", transfer.remote, transfer.bytes, rank, work.remote, work.rkey)))
    return Status::bad_argument;
  return start(*queue, work);
}

Result<RmaRequest*> Context::flush(int context, int rank) {
  Queue* const queue = find("flush", context, rank);
  if (queue == nullptr) return Status::bad_argument;
  {
    const std::lock_guard hold(lock_);
    if (queue->failure() == Status::ok && queue->idle() && (flush_ == nullptr || !flush_->needed()))
      return static_cast<RmaRequest*>(nullptr);
  }
  Work work;
  work.kind = Work::Kind::flush;
  work.flushes = true;
  return start(*queue, work);
}

Result<RmaRequest*> Context::start(Queue& queue, Work& work) {
  const std::lock_guard hold(lock_);
  if (queue.failure() != Status::ok) return queue.failure();  // logged when it failed
  Request* const request = requests_.take(*this);
  work.request = request;
  queue.start(work);
  queue.advance();
  return static_cast<RmaRequest*>(request);
}

Status Context::progress() {
  const std::lock_guard hold(lock_);
  turn();
  return Status::ok;  // requests and failed() tell
}

Status Context::test(Request& request, bool& done) {
  const std::lock_guard hold(lock_);
  if (request.state == Status::again) turn();
  done = request.state == Status::ok;
  if (done) {
    requests_.give_back(&request);
    return Status::ok;
  }
  return request.state == Status::again ? Status::ok : request.state;
}

void Context::turn() {
  poll();
  const std::int64_t now = now_ns();
  // What came has its receive again, or waits for a word to be added to.  Nothing else is told by
  // it, so there is no order to keep; and nobody else counts.
  if (moves_ != nullptr) std::atomic_ref(*beats()).store(*beats() + 1, std::memory_order_relaxed);
  if (moves_ != nullptr && !given_up_) moves_->turn(now);
  if (flush_ != nullptr && flush_->under_way()) (void)flush_->turn();
  if (flush_ != nullptr && flushed_ != flush_->done()) {
    flushed_ = flush_->done();
    for (auto& queue : queues_)
      if (queue != nullptr && !queue->idle()) queue->advance();
  }
  const bool works = (inbox_ == nullptr || given_up_ || inbox_->adder().turn()) &&
                     (flush_ == nullptr || !flush_->dead());
  if (!works && !given_up_) fail_queues(-1);
  if (now - looked_ >= kLookEvery) look_around(now);
}

void Context::poll() {
  for (const int port : {0, 1}) {
    bool more = sides_[static_cast<std::size_t>(port)] != nullptr;
    for (int i = 0; i < kPollsPerTurn && more; ++i) more = poll(port);
  }
}

// Whether there may be more.
bool Context::poll(int port) {
  std::array<ibv_wc, kPollBatch> wcs;
  ibv_cq* const cq = sides_[static_cast<std::size_t>(port)]->cq();
  const int n = ibv_poll_cq(cq, kPollBatch, wcs.data());
  if (n < 0) fail_queues(-1);
  std::uint32_t last = ~0u;
  for (int c = 0; c < n; ++c) {
    const ibv_wc& wc = wcs[static_cast<std::size_t>(c)];
    const auto q = static_cast<std::uint32_t>(WorkRequestId::pair(wc));
    Queue* const queue = q < queues_.size() ? queues_[q].get() : nullptr;
    if (queue == nullptr) continue;
    const bool moves = moves_ != nullptr && moves_->has(q);
    if (WorkRequestId::is_receive(wc)) {
      if (moves)
        moves_->on_completion(port, wc);
      else if (inbox_ != nullptr && !inbox_->on_receive(wc, queue->name()))
        queue->fail(Status::remote);
      continue;
    }
    // Once for what one queue has in a row.
    if (last != ~0u && last != q) queues_[last]->advance();
    last = q;
    if (moves)
      moves_->on_completion(port, wc);
    else
      queue->on_completion(wc);
  }
  if (last != ~0u) queues_[last]->advance();
  return n == kPollBatch;
}

void Context::fail_queues(int rank) {
  for (std::size_t q = 0; q < queues_.size(); ++q)
    if (queues_[q] != nullptr && (rank < 0 || rank_of(q) == rank)) queues_[q]->fail(Status::remote);
  if (rank < 0 && !given_up_) {
    given_up_ = true;
    if (inbox_ != nullptr) inbox_->adder().stop();
  }
  failed_.store(true, std::memory_order_release);
}

void Context::look_around(std::int64_t now) {
  looked_ = now;
  const bool moving = moves_ != nullptr && moves_->under_way();  // which has a limit of its own
  for (const int port : {0, 1}) {
    if (given_up_ || moving || !(moves_ != nullptr ? moves_->serves(port) : port == 0)) continue;
    if (team_->lost(team_->watch(port), now)) return fail_queues(-1);
  }
  for (int rank = 0; rank < ranks() && !given_up_; ++rank)
    if (rank != team_->rank() && !gone_[static_cast<std::size_t>(rank)]) look_at(rank, now);
}

// Something is always expected of a peer: who waits for its signals is not seen here.  So a silent
// one must answer a probe, over the first of the queues to it.
void Context::look_at(int rank, std::int64_t now) {
  const Mesh& mesh = *team_->mesh;
  const Mesh::PeerState peer = mesh.look(rank);
  Queue* const queue = queues_[static_cast<std::size_t>(rank)].get();
  const bool asked = queue != nullptr && !peer.left;
  const Verdict verdict = watches_[static_cast<std::size_t>(rank)].look(
      peer.sign, peer.silence_ms, now, asked, queue == nullptr ? 0 : queue->progress());
  if (verdict == Verdict::fine) return;
  if (verdict == Verdict::suspect) {
    queue->ask();
    return;
  }
  gone_[static_cast<std::size_t>(rank)] = true;
  TP_WARN("%s is gone: %s; requests to it fail", mesh.peer_text(rank).c_str(),
          mesh.verdict_text(rank, verdict).c_str());
  fail_queues(rank);
}

void Context::settle(RunClock& waited, std::int64_t limit) {
  std::vector<std::uint64_t> targets(queues_.size());
  std::uint64_t came = 0, flushes = 0;
  {
    const std::lock_guard hold(lock_);
    for (std::size_t q = 0; q < queues_.size(); ++q)
      if (queues_[q] != nullptr) targets[q] = queues_[q]->asked_for();
    poll();  // signals that are here already
    if (inbox_ != nullptr) came = inbox_->adder().came();
    if (flush_ != nullptr) flushes = flush_->posted();
  }
  for (bool busy = true; busy;) {
    {
      const std::lock_guard hold(lock_);
      turn();
      const bool late = waited.look(now_ns()) > limit;
      busy = inbox_ != nullptr && !given_up_ && inbox_->adder().added() < came;
      busy |= flush_ != nullptr && !flush_->settled(flushes);
      if (busy && late) fail_queues(-1);
      for (std::size_t q = 0; q < queues_.size(); ++q) {
        Queue* const queue = queues_[q].get();
        if (queue == nullptr || queue->told() >= targets[q]) continue;
        busy = true;
        if (!late) continue;
        TP_WARN("%s: what was asked for before a window's end does not end, and fails",
                queue->name().c_str());
        queue->fail(Status::remote);
      }
      if (late) return;
    }
    if (busy) sched_yield();
  }
}

}  // namespace twinpath::gda::rma
