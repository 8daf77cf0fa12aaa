// See copy_team.h.
#include "plugin/fabric/soft/copy_team.h"

#include <bit>
#include <cstring>

#include "plugin/base/blocked_signals.h"
#include "plugin/base/cpus.h"
#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/soft/requester.h"

namespace twinpath::soft {
namespace {

// Looks for work before a helper sleeps: some 20 us, about what it takes to be woken.
constexpr int kSpins = 500;
// Looks of an owner that leave a copy to its helpers although they get no further: they may have no
// core.
constexpr int kPatience = 1000;

constexpr std::uint64_t bit_of(int slot) { return std::uint64_t{1} << slot; }

}  // namespace

CopyTeam::CopyTeam(int threads) : cpus_(usable_cpus()) {
  CPU_ZERO(&process_cpus_);
  (void)sched_getaffinity(0, sizeof process_cpus_, &process_cpus_);
  set(threads);
}

void CopyTeam::know_processes(int n) {
  const std::lock_guard hold(control_);
  processes_ = n;
  if (chooses_ && running_.load(std::memory_order_relaxed) == 0)
    wanted_.store(suitable_copy_threads(cpus_, processes_), std::memory_order_relaxed);
}

void CopyTeam::set(int threads, std::uint64_t share, bool stream) {
  const std::lock_guard hold(control_);
  end_helpers();
  chooses_ = threads < 0;
  wanted_.store(
      chooses_ ? suitable_copy_threads(cpus_, processes_) : std::min(threads, kMaxCopyThreads),
      std::memory_order_relaxed);
  share_.store(share, std::memory_order_relaxed);
  stream_.store(stream, std::memory_order_relaxed);
}

CopyTeam::Look CopyTeam::look(TeamCopy& c) {
  std::uint64_t share = kSlice;
  if (offer(c)) {
    share = share_.load(std::memory_order_relaxed);
    if (share == kFitting) share = c.pid != 0 ? 0 : kChunk;
    if (share == 0 && helpers_get_on(c)) return Look::more;
    share = std::max(share, kChunk);
  }
  for (std::uint64_t copied = 0; copied < share; copied += kChunk) {
    const Chunk chunk = copy_chunk(c, kMaxCopyThreads, false);
    if (chunk == Chunk::copied) continue;
    if (chunk == Chunk::failed) {
      c.alone = true;
      cancel(c);
      return Look::failed;
    }
    if (!take_back(c)) return Look::wait;
    for (const auto& f : c.failed) {
      // Helpers' words, ordered by their leaving.
      if (f.load(std::memory_order_relaxed) == 0) continue;
      c.alone = true;
      return Look::failed;
    }
    return Look::done;
  }
  return Look::more;
}

bool CopyTeam::helpers_get_on(TeamCopy& c) {
  const std::uint64_t left = chunks_left(c);
  if (left != c.left) c.looks = 0;
  c.left = left;
  if (left == 0) return false;
  // A hint: helpers that only look at it count, too.
  const Slot& slot = slots_[static_cast<std::size_t>(c.slot)];
  if (slot.users.load(std::memory_order_relaxed) != 0 && ++c.looks < kPatience) return true;
  --c.left;  // the owner copies it now
  return false;
}

bool CopyTeam::offer(TeamCopy& c) {
  if (c.slot >= 0) return !c.closing;
  if (c.alone || wanted() == 0 || chunks_left(c) < 2) return false;
  if (running() == 0 && !start()) return false;
  std::uint64_t taken = taken_.load(std::memory_order_relaxed);
  int slot = 0;
  do {
    slot = std::countr_one(taken);
    if (slot >= kSlots) return false;
    // Acquire: whoever had the slot before is through with it.
  } while (!taken_.compare_exchange_weak(taken, taken | bit_of(slot), std::memory_order_acquire,
                                         std::memory_order_relaxed));
  c.slot = slot;
  c.closing = false;
  c.stream = stream_.load(std::memory_order_relaxed);
  slots_[static_cast<std::size_t>(slot)].copy.store(&c, std::memory_order_seq_cst);
  offered_.fetch_or(bit_of(slot), std::memory_order_release);
  wake_one();
  return true;
}

bool CopyTeam::take_back(TeamCopy& c) {
  if (c.slot < 0) return true;
  Slot& slot = slots_[static_cast<std::size_t>(c.slot)];
  if (!c.closing) {
    c.closing = true;
    slot.copy.store(nullptr, std::memory_order_seq_cst);
    offered_.fetch_and(~bit_of(c.slot), std::memory_order_relaxed);
  }
  if (slot.users.load(std::memory_order_seq_cst) != 0) return false;
  taken_.fetch_and(~bit_of(c.slot), std::memory_order_release);
  c.slot = -1;
  c.closing = false;
  return true;
}

void CopyTeam::cancel(TeamCopy& c) {
  for (unsigned spins = 0; !take_back(c);) {
    if (++spins < 1000) {
      cpu_relax();
    } else {
      sched_yield();
    }
  }
}

// Of whom it does not wake, none reads `calls_` as it was: who is about to sleep finds it changed.
void CopyTeam::wake_one() {
  calls_.fetch_add(1, std::memory_order_seq_cst);
  calls_.notify_one();
}

bool CopyTeam::start() {
  // Somebody else starts or ends them: this look does without.
  const std::unique_lock hold(control_, std::try_to_lock);
  if (!hold.owns_lock() || running() != 0) return hold.owns_lock();
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  // They inherit the caller's processors, which are near to its memory; if it is bound to fewer
  // than they need, they would only fight with it, and get the process's.
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) <= wanted() &&
      CPU_COUNT(&process_cpus_) > CPU_COUNT(&own))
    (void)pthread_attr_setaffinity_np(&attributes, sizeof process_cpus_, &process_cpus_);
  int n = 0, error = 0;
  const BlockedSignals blocked;
  for (; n < wanted(); ++n) {
    Helper& helper = helpers_[static_cast<std::size_t>(n)];
    helper.team = this;
    helper.index = n;
    const auto body = [](void* p) -> void* {
      const auto* self = static_cast<Helper*>(p);
      self->team->run(self->index);
      return nullptr;
    };
    error = pthread_create(&helper.thread, &attributes, body, &helper);
    // The choice of processors may be what was refused.
    if (error != 0) error = pthread_create(&helper.thread, nullptr, body, &helper);
    if (error != 0) break;
  }
  (void)pthread_attr_destroy(&attributes);
  if (error != 0) {
    TP_INFO(
        net,
        "soft HCA: large copies are slower than they could be, as only %d of %d threads for them "
        "could be started: %s",
        n, wanted(), why_no_thread(error).c_str());
    if (n == 0) wanted_.store(0, std::memory_order_relaxed);
  }
  running_.store(n, std::memory_order_release);
  return n != 0;
}

void CopyTeam::rest() {
  const std::lock_guard hold(control_);
  end_helpers();
}

void CopyTeam::end_helpers() {
  const int n = running_.exchange(0, std::memory_order_acq_rel);
  if (n == 0) return;
  ending_.store(true, std::memory_order_relaxed);  // published by calls_
  calls_.fetch_add(1, std::memory_order_seq_cst);
  calls_.notify_all();
  for (int i = 0; i < n; ++i)
    (void)pthread_join(helpers_[static_cast<std::size_t>(i)].thread, nullptr);
  ending_.store(false, std::memory_order_relaxed);
}

void CopyTeam::after_fork(bool in_child) {
  if (in_child) {
    // The threads are not here, and what they counted nobody would take back.
    wanted_.store(0, std::memory_order_relaxed);
    running_.store(0, std::memory_order_relaxed);
    offered_.store(0, std::memory_order_relaxed);
    for (Slot& slot : slots_) {
      slot.copy.store(nullptr, std::memory_order_relaxed);
      slot.users.store(0, std::memory_order_relaxed);
    }
    chooses_ = false;
  }
  control_.unlock();
}

void CopyTeam::run(int index) {
  (void)pthread_setname_np(pthread_self(), "twinpath-copy");
  int at = index * (kSlots / kMaxCopyThreads);
  for (int idle = 0;;) {
    // Before the look: an offer that the look misses changes it, and wait() returns at once.
    const std::uint32_t calls = calls_.load(std::memory_order_acquire);
    if (ending_.load(std::memory_order_relaxed)) return;
    if (help(index, at)) {
      idle = 0;
    } else if (++idle < kSpins) {
      cpu_relax();
    } else {
      asleep_.fetch_add(1, std::memory_order_relaxed);
      calls_.wait(calls, std::memory_order_acquire);
      asleep_.fetch_sub(1, std::memory_order_relaxed);
      idle = 0;
      // One wakes the next, so that the owner pays for one only.  A hint: who is missed here is
      // woken by a later offer.
      if (offered_.load(std::memory_order_relaxed) != 0 &&
          asleep_.load(std::memory_order_relaxed) != 0)
        wake_one();
    }
  }
}

// Each begins behind where it found work last, so that they spread over the copies on offer.
bool CopyTeam::help(int index, int& at) {
  for (const Company company : {Company::begun_by_none, Company::helped_by_none, Company::any}) {
    const std::uint64_t offered = offered_.load(std::memory_order_acquire);
    for (std::uint64_t rest = std::rotr(offered, at); rest != 0; rest &= rest - 1) {
      const int slot = (at + std::countr_zero(rest)) % kSlots;
      if (!help_at(slots_[static_cast<std::size_t>(slot)], index, bit_of(slot), company)) continue;
      at = (slot + 1) % kSlots;
      return true;
    }
  }
  return false;
}

// True if anything was copied.
bool CopyTeam::help_at(Slot& slot, int index, std::uint64_t bit, Company company) {
  bool any = false;
  if (company != Company::any && slot.users.load(std::memory_order_relaxed) != 0) return false;
  slot.users.fetch_add(1, std::memory_order_seq_cst);
  // Each time anew: the owner may take it back between chunks.
  while (TeamCopy* c = slot.copy.load(std::memory_order_seq_cst)) {
    if (company == Company::begun_by_none && !any && (!c->to_far || begun(*c))) break;
    if (c->failed[static_cast<std::size_t>(index)].load(std::memory_order_relaxed) != 0) break;
    const Chunk chunk = copy_chunk(*c, index, true);
    any = any || chunk == Chunk::copied;
    // Counted in, so the slot is still this copy's.
    if (chunk == Chunk::none) offered_.fetch_and(~bit, std::memory_order_relaxed);
    // In company for a chunk at a time: meanwhile there may be one to be alone at.
    if (chunk != Chunk::copied || company == Company::any) break;
  }
  slot.users.fetch_sub(1, std::memory_order_release);
  return any;
}

}  // namespace twinpath::soft
