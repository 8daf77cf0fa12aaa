// See soft_back_end.h.
#include "gda/served/back/soft_back_end.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"

namespace twinpath::gda {
namespace {

// What the copy thread copies itself when it sees the data before it arrive.
constexpr std::uint64_t kShortCopy = 4096;
// What the engine copies of one work request before it looks at other queues.
constexpr std::uint64_t kSlice = 1 << 20;

soft::Place behind(const soft::Place& place, std::uint64_t bytes) {
  soft::Place out = place;
  out.end.address += bytes;
  return out;
}

}  // namespace

SoftBackEnd::SoftBackEnd(const SoftBackEndSetup& setup)
    : setup_(setup), ring_(std::make_unique<Ring>(setup)) {}

SoftBackEnd::~SoftBackEnd() {
  ring_->dead.store(true, std::memory_order_release);
  {
    const std::lock_guard hold(ring_->lock);
    ring_->advance();
  }
  RunLimit own(kCopyLimit);
  RunLimit& limit = limit_ != nullptr ? *limit_ : own;
  while (!quiet() && !limit.over(now_ns())) sched_yield();
  if (!quiet()) {
    TP_WARN("copies of a GIN queue do not end; its memory is left to the process's end");
    (void)ring_.release();
    return;
  }
  // Who ended the last of them may still hold the lock.
  const std::lock_guard hold(ring_->lock);
}

Issued SoftBackEnd::issue(std::uint64_t index, const Operation& operation) {
  if (dead()) return Issued::failed;
  const bool queue_pair_busy = setup_.verbs->finished() != setup_.verbs->issued();
  const bool nothing =
      operation.kind == OperationKind::nop || operation.kind == OperationKind::dump;
  if (aside_) return by_queue_pair(index, operation, 0);
  if (index == partial_ || (nothing && queue_pair_busy))
    return by_queue_pair(index, operation, setup_.verbs->on());
  const int way = ring_->ways.choose(setup_.verbs->name().c_str());
  if (way == SoftWays::kLost) {
    ring_->unreachable.store(true, std::memory_order_release);
    die(index, Syndrome::retry_exceeded);
    return Issued::failed;
  }
  if (way == SoftWays::kNone) return Issued::full;

  // Nobody else looks at the slot behind the last before it is appended.
  Slot& slot = ring_->at(ring_->tail);
  slot = Slot{};
  slot.ring = ring_.get();
  slot.index = index;
  slot.way = way;
  switch (nothing ? soft::Reached::yes : prepare(operation, slot)) {
    case soft::Reached::no:
      let_go(slot);
      return by_queue_pair(index, operation, way);
    case soft::Reached::later:
      let_go(slot);
      return Issued::full;
    case soft::Reached::yes:
      break;
  }
  if (queue_pair_busy) {
    let_go(slot);
    return Issued::full;
  }
  // Not before: the queue pair's work requests use the same scratch memory.
  if (operation.kind == OperationKind::write_inline)
    std::memcpy(scratch(), operation.inline_data.data(), operation.bytes);
  const bool copy_engine =
      slot.effect == Effect::copy && (slot.to.gpu >= 0 || slot.from.gpu >= 0) && slot.bytes != 0;
  return append(slot, copy_engine);
}

soft::Reached SoftBackEnd::prepare(const Operation& operation, Slot& slot) {
  using soft::Reached;
  if (operation.kind == OperationKind::fetch_add) return prepare_add(operation, slot);
  const bool read = operation.kind == OperationKind::read;
  soft::Place near, far;
  soft::Reach& reach = ring_->ways.reach(slot.way);
  const Reached found =
      reach.remote(operation.rkey_at(ring_->ways.ports().there(slot.way)), operation.remote,
                   operation.bytes, read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE, far);
  if (found != Reached::yes) return found;
  slot.to_place = far;  // what let_go() drops
  if (operation.kind == OperationKind::write_inline) {
    near.end = {reinterpret_cast<std::uintptr_t>(scratch()), -1};
  } else if (operation.bytes != 0 &&
             reach.local(operation.lkey_at(ring_->ways.ports().here(slot.way)), operation.local,
                         operation.bytes, read ? IBV_ACCESS_LOCAL_WRITE : 0,
                         near) != Reached::yes) {
    return Reached::no;
  }
  // Between a GPU here and host memory of another process no engine copies.
  if (far.pid != 0 && near.end.gpu >= 0) return Reached::no;
  slot.effect = Effect::copy;
  slot.to_place = read ? near : far;
  slot.from_place = read ? far : near;
  slot.to = slot.to_place.end;
  slot.from = slot.from_place.end;
  slot.bytes = operation.bytes;
  slot.executor = near.end.gpu;
  slot.order = ring_->ways.order();
  slot.done = copy_done;
  return Reached::yes;
}

soft::Reached SoftBackEnd::prepare_add(const Operation& operation, Slot& slot) {
  using soft::Reached;
  // Added by the peer's CPU, in the order in which they come there.
  if (setup_.verbs->counts()) return Reached::no;
  soft::Place word;
  const Reached found = ring_->ways.reach(slot.way).remote(
      operation.rkey_at(ring_->ways.ports().there(slot.way)), operation.remote,
      sizeof(std::uint64_t), IBV_ACCESS_REMOTE_ATOMIC, word);
  if (found != Reached::yes) return found;
  slot.to_place = word;
  if (word.end.address % sizeof(std::uint64_t) != 0) return Reached::no;
  slot.operand[0] = operation.add;
  if (word.end.gpu >= 0) {
    // Of another process: its own copy thread must do it.
    if (word.own == 0) return Reached::no;
    slot.effect = Effect::update;
    slot.update = true;
    slot.to = {word.own, word.end.gpu};
    slot.executor = word.end.gpu;
    slot.done = copy_done;
    return Reached::yes;
  }
  if (word.pid != 0) {
    const std::uint64_t at = word.end.address - setup_.signals;
    if (setup_.signals_here == nullptr || word.end.address < setup_.signals ||
        at >= setup_.signals_bytes)
      return Reached::no;
    slot.to_place.end.address = reinterpret_cast<std::uintptr_t>(setup_.signals_here + at);
    slot.to_place.pid = 0;
  }
  slot.effect = Effect::add;
  return Reached::yes;
}

// Counts of finished operations stay one row: it begins when nothing else is under way.
Issued SoftBackEnd::by_queue_pair(std::uint64_t index, const Operation& operation, int way) {
  if (!quiet()) return Issued::full;
  if (way != setup_.verbs->on()) {
    if (setup_.verbs->finished() != setup_.verbs->issued()) return Issued::full;
    setup_.verbs->take(way);
  }
  const Issued issued = setup_.verbs->issue(index, operation);
  partial_ = issued == Issued::full ? index : kNone;
  return issued;
}

Issued SoftBackEnd::append(Slot& slot, bool copy_engine) {
  const std::uint64_t index = slot.index;
  issued_.store(index + 1, std::memory_order_release);
  const bool one_slice = slot.effect != Effect::copy || slot.bytes <= kSlice;
  if (!copy_engine && one_slice && slot.effect != Effect::update && quiet()) {
    const bool ok = carry_out(slot);
    let_go(slot);
    if (!ok) {
      TP_WARN("GIN work request %llu: the system does not let us copy memory of its peer any more",
              static_cast<unsigned long long>(index));
      die(index, Syndrome::remote_operation);
      return Issued::failed;
    }
    finish_now(index);
    return Issued::accepted;
  }
  slot.state = copy_engine ? State::moving : State::pending;
  {
    const std::lock_guard hold(ring_->lock);
    ++ring_->tail;
    ring_->under_way.fetch_add(1, std::memory_order_relaxed);
    // What it waited for may have ended just now.
    if (!copy_engine) ring_->advance();
  }
  if (copy_engine) {
    if (const Status status = gpu::submit_copy(&slot); status != Status::ok)
      copy_done(&slot, status);
  }
  return Issued::accepted;
}

void SoftBackEnd::finish_now(std::uint64_t index) {
  ring_->finished.store(index + 1, std::memory_order_release);
  reported_ = index + 1;
  queue_->complete(index);
}

bool SoftBackEnd::carry_out(Slot& slot) {
  switch (slot.effect) {
    case Effect::nothing:
      return true;
    case Effect::add:
      // Partner: the acquire of who waits for the signal, a kernel.
      std::atomic_ref<std::uint64_t>(
          *reinterpret_cast<std::uint64_t*>(static_cast<std::uintptr_t>(slot.to_place.end.address)))
          .fetch_add(slot.operand[0], std::memory_order_release);
      return true;
    case Effect::copy: {
      const std::uint64_t done = slot.moved, bytes = std::min(slot.bytes - done, kSlice);
      if (bytes != 0 && !slot.ring->ways.reach(slot.way).copy(behind(slot.to_place, done),
                                                              behind(slot.from_place, done), bytes))
        return false;
      slot.moved += bytes;
      return true;
    }
    case Effect::update:
      break;  // not by the CPU
  }
  return false;
}

void SoftBackEnd::let_go(Slot& slot) {
  soft::Reach::drop(slot.to_place);
  soft::Reach::drop(slot.from_place);
}

bool SoftBackEnd::is_long(const Slot& slot) {
  // Into and out of other processes it is a system call, which nobody makes under the ring's lock.
  return slot.effect == Effect::copy &&
         (slot.bytes > kShortCopy || slot.to_place.pid != 0 || slot.from_place.pid != 0);
}

void SoftBackEnd::Ring::advance() {
  for (; first != tail; ++first, under_way.fetch_sub(1, std::memory_order_release)) {
    Slot& slot = at(first);
    if (slot.state == State::moving) return;
    const bool gone = dead.load(std::memory_order_relaxed);
    if (slot.state == State::pending && !gone) {
      if (is_long(slot)) {
        attention.store(true, std::memory_order_release);
        return;
      }
      if (slot.effect == Effect::update) {
        slot.state = State::moving;
        if (gpu::submit_copy(&slot) == Status::ok) return;
        slot.state = State::failed;
      } else {
        slot.state = carry_out(slot) ? State::done : State::failed;
      }
    }
    if (slot.state == State::failed && !gone) {
      attention.store(true, std::memory_order_release);
      return;
    }
    let_go(slot);
    if (!gone) finished.store(slot.index + 1, std::memory_order_release);
  }
}

// The copy thread's, or the engine's when a job could not be submitted.
void SoftBackEnd::copy_done(gpu::CopyJob* job, Status status) {
  auto& slot = *static_cast<Slot*>(job);
  Ring& ring = *slot.ring;
  if (status == Status::closed) ring.unreachable.store(true, std::memory_order_release);
  const std::lock_guard hold(ring.lock);
  slot.state = status == Status::ok ? State::done : State::failed;
  ring.advance();
}

bool SoftBackEnd::poll() {
  bool moved = false;
  if (ring_->attention.load(std::memory_order_acquire)) moved = attend();
  const std::uint64_t finished = ring_->finished.load(std::memory_order_acquire);
  if (finished > reported_) {
    reported_ = finished;
    queue_->complete(finished - 1);
    moved = true;
  }
  return moved;
}

// The front of the ring is a long copy, or has failed.
bool SoftBackEnd::attend() {
  ring_->attention.store(false, std::memory_order_relaxed);
  std::uint64_t failed = 0;
  {
    std::unique_lock hold(ring_->lock);
    if (ring_->first == ring_->tail || ring_->dead.load(std::memory_order_relaxed)) return false;
    Slot& slot = ring_->at(ring_->first);
    if (slot.state == State::pending) {
      slot.state = State::moving;  // nobody passes it meanwhile
      hold.unlock();
      const bool ok = carry_out(slot);
      hold.lock();
      if (ok && slot.effect == Effect::copy && slot.moved != slot.bytes) {
        slot.state = State::pending;  // the rest at a later turn
        ring_->attention.store(true, std::memory_order_relaxed);
        return true;
      }
      slot.state = ok ? State::done : State::failed;
    }
    if (slot.state != State::failed) {
      ring_->advance();
      return true;
    }
    failed = slot.index;
  }
  (void)poll();  // what came before it is done
  TP_WARN("a copy of GIN work request %llu failed; the log above says why",
          static_cast<unsigned long long>(failed));
  die(failed, Syndrome::local_protection);
  return true;
}

void SoftBackEnd::ask() {
  const bool idle = setup_.verbs->finished() == setup_.verbs->issued() && partial_ == kNone;
  if (const int way = idle && !aside_ ? ring_->ways.find() : setup_.verbs->on(); way >= 0) {
    setup_.verbs->take(way);
    setup_.verbs->ask();
  }
}

void SoftBackEnd::fail_all(Syndrome syndrome) {
  if (dead()) return;
  (void)poll();
  die(finished(), syndrome);
}

void SoftBackEnd::die(std::uint64_t index, Syndrome syndrome) {
  ring_->dead.store(true, std::memory_order_release);
  {
    const std::lock_guard hold(ring_->lock);
    ring_->advance();  // effects that wait are dropped
  }
  queue_->fail(index, syndrome);
  setup_.verbs->fail_all(syndrome);
}

std::uint64_t SoftBackEnd::issued() const {
  return std::max(issued_.load(std::memory_order_acquire), setup_.verbs->issued());
}
std::uint64_t SoftBackEnd::finished() const {
  return std::max(ring_->finished.load(std::memory_order_acquire), setup_.verbs->finished());
}

}  // namespace twinpath::gda
