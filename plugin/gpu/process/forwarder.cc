#include "plugin/gpu/process/forwarder.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/cpus.h"
#include "plugin/base/log.h"
#include "plugin/gpu/near_cpus.h"

namespace twinpath::gpu::process {
namespace {

constexpr std::int64_t kIdleSpin = 200'000;  // ns before an idle thread sleeps
constexpr std::int64_t kBusySpin = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLookAfter = kMillisecond;  // without progress: is the process alive?
constexpr unsigned kPoliteRounds = 4096;
constexpr std::uint64_t kWordsAtOnce = 4;
constexpr std::uint64_t kSmall = 1024;

// Who waits for small pieces watches their words: each is stored whole, in address order.
void land(std::uint64_t to, const std::byte* from, std::uint64_t bytes) {
  if (bytes > kSmall || to % 8 != 0 || bytes % 8 != 0) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return;
  }
  for (std::uint64_t at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, sizeof word);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + at))
        .store(word, std::memory_order_release);
  }
}

// One that the process does not see is some other one.
std::int16_t ordinal(int gpu) {
  return static_cast<std::int16_t>(std::min(gpu, int{std::numeric_limits<std::int16_t>::max()}));
}

}  // namespace

Forwarder::Forwarder(int gpu, SharedMemory memory, CopyProcess& process, const AddressMap& map,
                     HelperCpus cpus)
    : gpu_(gpu),
      cpus_(cpus),
      memory_(std::move(memory)),
      ring_(*memory_.as<Rings>()),
      process_(process),
      view_(map),
      passage_(memory_.as<std::byte>() + kPassageAt),
      tasks_(kEntries + 1) {
  for (std::uint32_t i = kEntries + 1; i-- > 0;) tasks_free_.push_back(i);
  thread_ = std::thread([this] { run(); });
}

void Forwarder::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  inbox_.wake();
  thread_.join();
}

void Forwarder::leave() {
  if (!thread_.joinable()) return;
  leaving_.store(true);
  inbox_.wake();
  thread_.join();
}

void Forwarder::run() {
  char name[16];
  std::snprintf(name, sizeof name, "tp-give-%d", gpu_ % 1000);
  (void)pthread_setname_np(pthread_self(), name);
  const int cpus = place_helper(cpus_, near_cpus(gpu_));
  make_sleeps_exact();
  const bool crowded = pause_after(0, cpus, kIdleSpin) != Pause::spin;
  std::int64_t last_progress = now_ns(), last_look = last_progress;
  for (unsigned idle_rounds = 0;;) {
    if (leaving_.load(std::memory_order_relaxed)) return;
    if (step()) {
      idle_rounds = 0;
      continue;
    }
    const bool busy = !ring_.idle() || !pending_.empty();
    if (!busy && stopping_.load() && inbox_.empty()) return;
    if (++idle_rounds == 1) last_progress = now_ns();
    if (!crowded) {
      cpu_relax();
      if (idle_rounds % 64 != 0) continue;
    }
    const std::int64_t now = now_ns();
    if (busy && now - std::max(last_progress, last_look) > kLookAfter) {
      last_look = now;
      if (process_.ended()) give_up();
    }
    const Pause pause = pause_after(now - last_progress, cpus, busy ? kBusySpin : kIdleSpin);
    if (pause == Pause::sleep && busy) {
      sleep_briefly();  // outcomes and new jobs: nothing tells of both
    } else if (pause == Pause::sleep) {
      inbox_.sleep([this] { return stopping_.load() || leaving_.load(); });
      idle_rounds = 0;
    } else if (pause == Pause::yield || idle_rounds > kPoliteRounds) {
      sched_yield();
    }
  }
}

bool Forwarder::step() {
  bool moved = take();
  moved |= collect();
  moved |= issue();
  return moved;
}

bool Forwarder::take() {
  CopyJob* job = inbox_.take();
  if (job == nullptr) return false;
  while (job != nullptr) {
    CopyJob* next = job->next;
    pending_.push(job);
    job = next;
  }
  return true;
}

bool Forwarder::issue() {
  bool moved = false;
  while (!pending_.empty() && ring_.room()) {
    if (process_.seen_ended()) {
      give_up();
      return true;
    }
    CopyJob& job = *pending_.front();
    if (given_ == 0) {
      front_task_ = tasks_free_.back();
      tasks_free_.pop_back();
      tasks_[front_task_] = {&job, 0, Status::ok, false};
    }
    const std::uint64_t before = given_;
    const bool all = give(job);
    moved |= all || given_ != before;
    if (!all) {
      // Nothing of it went: it begins anew next time.
      if (given_ == 0) tasks_free_.push_back(front_task_);
      break;
    }
    tasks_[front_task_].all_given = true;
    given_ = 0;
    (void)pending_.pop();
  }
  ring_.publish();
  return moved;
}

bool Forwarder::resolve(const CopyEnd& end, std::uint64_t bytes, End& out) {
  if (end.gpu < 0) {
    out = {end.address, -1};
    return true;
  }
  const Mapped* m = view_.find(end.address, bytes);
  if (m == nullptr) {
    if (!std::exchange(warned_, true))
      TP_WARN(
          "GPU %d: a copy of %llu bytes at 0x%llx is outside of all memory that is registered; "
          "this is a defect, please report it",
          gpu_, static_cast<unsigned long long>(bytes),
          static_cast<unsigned long long>(end.address));
    return false;
  }
  out = {m->there + (end.address - m->start), m->gpu};
  return true;
}

// True: all of it was handed over.  False: the rest later, `given_` says from where.
bool Forwarder::give(CopyJob& job) {
  Entry entry;
  End to, from;
  const std::uint64_t bytes = job.update ? sizeof(std::uint64_t) : job.bytes;
  bool good = resolve(job.to, bytes, to) && (job.update || resolve(job.from, bytes, from));
  if (good && !job.update && bytes != 0 && to.gpu < 0 && from.gpu < 0) good = false;
  if (!good || bytes == 0) {
    // A copy of nothing keeps its place in the order.
    if (!good) tasks_[front_task_].status = Status::bad_argument;
    return give_one(job, entry);
  }
  entry.to = to.address;
  entry.to_gpu = ordinal(to.gpu);
  if (job.update) {
    const auto& update = static_cast<const WordUpdate&>(job);
    entry.kind = update.compare ? EntryKind::compare : EntryKind::add;
    std::copy_n(update.operand, entry.body.size(), entry.body.begin());
    return give_one(job, entry);
  }
  if (to.gpu >= 0 && from.gpu >= 0) {
    entry.body = {from.address, bytes, 0, 0};
    entry.from_gpu = ordinal(from.gpu);
    return give_one(job, entry);
  }
  if (to.gpu >= 0 && bytes <= 8 * kWordsAtOnce && bytes % 8 == 0 && job.from.address % 8 == 0 &&
      job.to.address % 8 == 0)
    return give_words(job, to);
  return give_chunks(job, to, from);
}

void Forwarder::push(Entry& entry, RingEnd::Given given) {
  given.task = front_task_;
  ++tasks_[front_task_].left;
  ring_.push(entry, given);
}

bool Forwarder::give_one(CopyJob& job, Entry& entry) {
  entry.order = job.order;
  push(entry);
  return true;
}

bool Forwarder::give_words(CopyJob& job, const End& to) {
  Entry entry;
  entry.kind = EntryKind::words;
  entry.to = to.address;
  entry.to_gpu = ordinal(to.gpu);
  entry.count = static_cast<std::uint8_t>(job.bytes / 8);
  // The source may be a line that a GPU or another thread fills: one 8-byte load each.
  for (std::size_t i = 0; i < entry.count; ++i)
    entry.body[i] = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(job.from.address + 8 * i))
                        .load(std::memory_order_relaxed);
  return give_one(job, entry);
}

bool Forwarder::give_chunks(CopyJob& job, const End& to, const End& from) {
  const bool out = to.gpu < 0;  // of the GPU
  while (given_ < job.bytes) {
    if (!ring_.room()) return false;
    const std::uint32_t chunk = passage_.take();
    if (chunk == Passage::kNone) return false;
    const std::uint64_t bytes = std::min<std::uint64_t>(kChunk, job.bytes - given_);
    Entry entry;
    entry.order = job.order;
    if (out) {
      entry.to = Passage::offset(chunk);
      entry.body = {from.address + given_, bytes, 0, 0};
      entry.from_gpu = ordinal(from.gpu);
    } else {
      std::memcpy(passage_.at(chunk), reinterpret_cast<const void*>(job.from.address + given_),
                  bytes);
      entry.to = to.address + given_;
      entry.to_gpu = ordinal(to.gpu);
      entry.body = {Passage::offset(chunk), bytes, 0, 0};
    }
    RingEnd::Given given{.chunk = chunk};
    if (out) {
      given.to = job.to.address + given_;
      given.bytes = bytes;
    }
    push(entry, given);
    given_ += bytes;
    ring_.publish();  // the next is filled while this one moves
  }
  return true;
}

bool Forwarder::collect() {
  return ring_.collect(
      [this](const RingEnd::Given& given, const Outcome& outcome) { arrived(given, outcome); });
}

void Forwarder::arrived(const RingEnd::Given& given, const Outcome& outcome) {
  Task& task = tasks_[given.task];
  const auto status = static_cast<Status>(outcome.status);
  if (status != Status::ok && task.status == Status::ok) task.status = status;
  if (given.chunk != Passage::kNone) {
    if (given.bytes != 0 && task.status == Status::ok)
      land(given.to, passage_.at(given.chunk), given.bytes);
    passage_.give_back(given.chunk);
  }
  if (task.job->update) static_cast<WordUpdate*>(task.job)->old = outcome.old;
  --task.left;
  if (task.left == 0 && task.all_given) end_task(given.task);
}

void Forwarder::end_task(std::uint32_t index) {
  const Task task = tasks_[index];
  tasks_free_.push_back(index);
  counts_.ended(task.status, task.job->bytes);
  task.job->done(task.job, task.status);  // the job may be gone or submitted again from here on
}

// The process has ended: nothing is under way any more, and nothing will be.
void Forwarder::give_up() {
  ring_.give_up(
      [this](const RingEnd::Given& given, const Outcome& outcome) { arrived(given, outcome); });
  if (given_ != 0) {
    tasks_[front_task_].status = Status::closed;
    tasks_[front_task_].all_given = true;
    given_ = 0;
    (void)pending_.pop();
    if (tasks_[front_task_].left == 0) end_task(front_task_);
  }
  while (!pending_.empty()) {
    CopyJob* job = pending_.pop();
    counts_.ended(Status::closed, 0);
    job->done(job, Status::closed);
  }
}

}  // namespace twinpath::gpu::process
