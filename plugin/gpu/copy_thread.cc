// Life and loop of a copy thread.
#include "plugin/gpu/copy_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <utility>

#include "plugin/base/cpus.h"
#include "plugin/base/log.h"
#include "plugin/base/wait_within.h"
#include "plugin/gpu/near_cpus.h"

namespace twinpath::gpu {
namespace {

using cuda::kSuccess;

constexpr int kGreatest =
    -5;  // priority of a stream; the driver takes its own limit if that is less
constexpr std::int64_t kIdleSpin = 200'000;  // ns before an idle thread sleeps
constexpr std::int64_t kBusySpin = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeaveLimit = kSecond;
constexpr std::int64_t kStall = 100 * kMillisecond;
// Rounds without progress after which the core is offered to others.
constexpr unsigned kPoliteRounds = 4096;

}  // namespace

struct CopyThread::Resources {
  const cuda::Driver* d = nullptr;
  int gpu = -1;
  bool retained = false;
  std::array<cuda::Stream, kLanes> streams{};
  void* pinned = nullptr;
  cuda::Address word = 0;

  // At process end the driver may have been shut down already: everything is left to the kernel.
  void forget() {
    streams.fill(nullptr);
    pinned = nullptr;
    word = 0;
    retained = false;
  }

  ~Resources() {
    for (cuda::Stream s : streams)
      if (s != nullptr) (void)d->stream_destroy(s);
    if (pinned != nullptr) (void)d->host_free(pinned);
    if (word != 0) (void)d->mem_free(word);
    if (!retained) return;
    (void)d->ctx_set(nullptr);
    (void)d->primary_release(gpu);
  }
};

void CopyThread::start() {
  std::lock_guard lock(start_mutex_);
  if (running_.load(std::memory_order_relaxed)) return;
  stopping_.store(false, std::memory_order_relaxed);
  ready_.store(false, std::memory_order_relaxed);
  thread_ = std::thread([this] { run(); });
  neighbour_.open();
  running_.store(true, std::memory_order_release);
}

void CopyThread::wait_ready(std::int64_t limit_ns) const {
  (void)wait_within(
      limit_ns, [this] { return ready_.load(std::memory_order_acquire); },
      [] { return ::usleep(50); });
}

void CopyThread::prepare() {
  const cuda::Driver* d = cuda::driver();
  if (d != nullptr) neighbour_.prepare(*d, gpu_, kPeerStage, source_ != nullptr);
}

void CopyThread::stop() {
  std::lock_guard lock(start_mutex_);
  if (!running_.load(std::memory_order_relaxed)) return;
  stopping_.store(true);
  wake();
  thread_.join();
  neighbour_.close();
  running_.store(false, std::memory_order_release);
}

void CopyThread::leave() {
  std::lock_guard lock(start_mutex_);
  if (!running_.load(std::memory_order_relaxed)) return;
  leaving_.store(true);
  wake();
  // One that is still being made may wait in the driver for a kernel that waits for it.
  wait_ready(kLeaveLimit);
  if (!ready_.load(std::memory_order_acquire)) return thread_.detach();
  thread_.join();
  neighbour_.leave();
  running_.store(false, std::memory_order_release);
}

Status CopyThread::open(Resources& r) {
  r.d = cuda::driver();
  r.gpu = gpu_;
  if (r.d == nullptr) return Status::unsupported;
  const auto check = [&](cuda::Result result, const char* call) {
    if (result == kSuccess) return true;
    TP_WARN("GPU %d: copy thread: %s failed (%s): its copies end in error", gpu_, call,
            error_name(*r.d, result).c_str());
    return false;
  };
  cuda::Context context = nullptr;
  if (!check(r.d->primary_retain(&context, gpu_), "cuDevicePrimaryCtxRetain"))
    return Status::system;
  r.retained = true;
  if (!check(r.d->ctx_set(context), "cuCtxSetCurrent")) return Status::system;
  int mode = cuda::kCaptureRelaxed;
  (void)r.d->exchange_capture_mode(&mode);
  constexpr std::size_t kHead = 4096;  // the words; what follows begins on a page
  constexpr std::size_t kUpdateWords = kLanes * kCacheLine;
  constexpr std::size_t kNudge = kUpdateWords + WordUpdates::kWords * sizeof(std::uint64_t);
  static_assert(kNudge + sizeof(std::uint64_t) <= kHead);
  constexpr std::size_t kLaneWords = CopyLane::kMaxDepth * CopyLane::kStageWords;
  constexpr std::size_t kStagesEnd = kHead + kSmallStage + kHostStage;
  if (!check(r.d->host_alloc(&r.pinned, kStagesEnd + kLanes * kLaneWords * sizeof(std::uint64_t),
                             cuda::kHostAllocPortable | cuda::kHostAllocMapped),
             "cuMemHostAlloc"))
    return Status::system;
  // With a source, the kernels beside which it copies are those of another process.
  const bool beside_others = source_ != nullptr;
  const bool first = beside_others && r.d->stream_create_with_priority != nullptr;
  for (cuda::Stream& stream : r.streams) {
    const cuda::Result made =
        first ? r.d->stream_create_with_priority(&stream, cuda::kStreamNonBlocking, kGreatest)
              : r.d->stream_create(&stream, cuda::kStreamNonBlocking);
    if (!check(made, "cuStreamCreate")) return Status::system;
  }
  if (beside_others && !check(r.d->mem_alloc(&r.word, sizeof(std::uint64_t)), "cuMemAlloc")) {
    r.word = 0;
    return Status::system;
  }

  auto* base = static_cast<std::byte*>(r.pinned);
  const auto at = [&](std::size_t offset) {
    return reinterpret_cast<std::uintptr_t>(base + offset);
  };
  updates_.open(gpu_, reinterpret_cast<std::uint64_t*>(base + kUpdateWords));
  for (std::size_t i = 0; i < kLanes; ++i) {
    CopyLane::Setup setup;
    setup.driver = r.d;
    setup.gpu = gpu_;
    setup.stream = r.streams[i];
    setup.word = reinterpret_cast<std::uint64_t*>(base + i * kCacheLine);
    *setup.word = 0;
    // Two batches: one under way and one behind it; more would only make batches smaller.  Tiny
    // jobs are about latency: there the next need not wait to be collected.
    setup.depth = i == kTinyLane ? 4 : 2;
    if (beside_others) {
      setup.rows_below = kRowsBelow;
      setup.word_stage = reinterpret_cast<std::uint64_t*>(base + kStagesEnd) + i * kLaneWords;
      setup.nudge_from = r.word;
      setup.nudge_to = at(kNudge);
    }
    if (i == kSmallLane) setup.host = {at(kHead), kSmallStage};
    if (i == kStagedLane) {
      setup.host = {at(kHead + kSmallStage), kHostStage};
      setup.peer.bytes = kPeerStage;
    }
    lanes_[i].emplace(setup);
  }
  return Status::ok;
}

void CopyThread::run() {
  char name[16];
  std::snprintf(name, sizeof name, "tp-copy-%d", gpu_ % 1000);
  (void)pthread_setname_np(pthread_self(), name);
  if (near_) move_near(near_cpus(gpu_));
  make_sleeps_exact();
  Resources resources;
  dead_ = open(resources);
  ready_.store(true, std::memory_order_release);
  serve(usable_cpus());
  if (leaving_.load()) resources.forget();
  for (auto& lane : lanes_) lane.reset();
  orders_.fill({});
}

void CopyThread::serve(int cpus) {
  const bool crowded = pause_after(0, cpus, kIdleSpin) != Pause::spin;
  // Of the time in which the thread ran: what the GPU did while the process stood still, a step
  // finds.
  RunClock ran(kStall / 8);
  std::int64_t last_progress = 0;
  unsigned idle_rounds = 0;
  for (;;) {
    if (leaving_.load(std::memory_order_relaxed)) return;
    const bool moved = step();
    if (moved) {
      idle_rounds = 0;
      continue;
    }
    if (in_flight_ == 0 && stopping_.load() && inbox_.empty()) return;
    if (++idle_rounds == 1) last_progress = ran.look(now_ns());
    if (!crowded) {
      cpu_relax();
      // The clock is read once in a while only: it costs as much as a look at all words.
      if (idle_rounds % 64 != 0) continue;
    }
    const std::int64_t quiet = ran.look(now_ns()) - last_progress;
    const bool busy = in_flight_ != 0;
    if (busy && quiet > kStall) {
      for (auto& lane : lanes_)
        if (dead_ == Status::ok && lane && lane->stuck()) give_up(Status::system);
      idle_rounds = 0;
      continue;
    }
    const Pause pause = pause_after(quiet, cpus, busy ? kBusySpin : kIdleSpin);
    if (pause == Pause::sleep && busy) {
      sleep_briefly();  // a GPU wakes nobody
    } else if (pause == Pause::sleep) {
      sleep();
      idle_rounds = 0;
    } else if (pause == Pause::yield || (busy && idle_rounds > kPoliteRounds)) {
      sched_yield();
    }
  }
}

// Takes what was submitted; true when there was something.
bool CopyThread::take() {
  CopyJob* job = source_ != nullptr ? source_->take() : inbox_.take();
  if (job == nullptr) return false;
  while (job != nullptr) {
    CopyJob* next = source_ != nullptr ? source_->take() : job->next;
    accept(job);
    job = next;
  }
  return true;
}

void CopyThread::accept(CopyJob* job) {
  ++in_flight_;
  if (job->update) {
    updates_.add(static_cast<WordUpdate*>(job));
  } else {
    queue(slot_of(*job), job);
  }
}

CopyThread::OrderSlot& CopyThread::slot_of(const CopyJob& job) {
  return orders_[order_slot(job, kOrderBits)];
}

void CopyThread::queue(OrderSlot& slot, CopyJob* job) {
  if (dead_ != Status::ok) {
    ++slot.in_flight;
    finish(job, dead_);
    return;
  }
  const CopyKind kind = classify(*job);
  std::size_t least = 0;
  if (kind == CopyKind::staged) least = job->bytes > kSmallStaged ? kStagedLane : kSmallLane;
  if (slot.in_flight == 0) {
    slot.lane = static_cast<std::uint8_t>(choose_lane(slot, kind, least));
  } else if (!slot.held.empty() || least > slot.lane) {
    slot.held.push(job);
    return;
  } else if (kind != CopyKind::tiny) {
    slot.tiny_run = 0;
  } else if (slot.tiny_run < kTinyRun) {
    ++slot.tiny_run;
  }
  ++slot.in_flight;
  if (slot.lane == kStagedLane) lanes_[slot.lane]->through_peer(neighbour_.address());
  lanes_[slot.lane]->add(job);
}

std::size_t CopyThread::choose_lane(OrderSlot& slot, CopyKind kind, std::size_t least) {
  // A transfer and its signal, again and again: were the signal put elsewhere, the next transfer
  // would have to wait for it.
  if (slot.staged_run > 0 && least < slot.staged_lane) {
    --slot.staged_run;
    return slot.staged_lane;
  }
  if (kind == CopyKind::staged) {
    slot.tiny_run = 0;
    slot.staged_run = kStagedRun;
    slot.staged_lane = static_cast<std::uint8_t>(least);
    return least;
  }
  if (kind == CopyKind::tiny) {
    if (slot.tiny_run >= kTinyRun) return kTinyLane;
    ++slot.tiny_run;
  } else {
    slot.tiny_run = 0;
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < kCopyLanes; ++i)
    if (lanes_[i]->load() < lanes_[best]->load()) best = i;
  return best;
}

// One look at everything; true when something moved.
bool CopyThread::step() {
  bool moved = take();
  moved |= advance_updates();
  if (dead_ != Status::ok) return moved;
  for (auto& lane : lanes_) {
    if (lane->idle()) continue;
    moved |= lane->poll([this](CopyJob* job, Status status) { finish(job, status); });
    LaneCounts c;
    const bool alive = lane->issue(c);
    counts_.issued(c);
    moved |= c.batches != 0;
    if (!alive) {
      give_up(Status::system);
      return true;
    }
  }
  return moved;
}

bool CopyThread::advance_updates() {
  if (updates_.idle()) return false;
  if (dead_ != Status::ok) updates_.give_up(dead_);
  for (JobList steps = updates_.begin(); !steps.empty();) {
    CopyJob* step = steps.pop();
    ++in_flight_;
    queue(slot_of(*step), step);
  }
  bool moved = false;
  for (JobList ended = updates_.take_ended(); !ended.empty(); moved = true) {
    auto* update = static_cast<WordUpdate*>(ended.pop());
    --in_flight_;
    counts_.ended(update->ended, 0);
    update->done(update, update->ended);
  }
  return moved;
}

void CopyThread::give_up(Status status) {
  dead_ = status;
  for (auto& lane : lanes_)
    lane->abandon(status, [this](CopyJob* job, Status s) { finish(job, s); });
}

void CopyThread::finish(CopyJob* job, Status status) {
  OrderSlot& slot = slot_of(*job);
  --in_flight_;
  --slot.in_flight;
  counts_.ended(status, job->bytes);
  job->done(job, status);  // the job may be gone or submitted again from here on
  if (slot.in_flight != 0 || slot.held.empty()) return;
  JobList held = std::exchange(slot.held, {});
  while (!held.empty()) queue(slot, held.pop());
}

void CopyThread::sleep() {
  if (source_ != nullptr) {
    if (!stopping_.load() && !leaving_.load()) source_->sleep();
  } else {
    inbox_.sleep([this] { return stopping_.load() || leaving_.load(); });
  }
}

}  // namespace twinpath::gpu
