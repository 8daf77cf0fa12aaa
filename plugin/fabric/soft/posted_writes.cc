// See posted_writes.h.
#include "plugin/fabric/soft/posted_writes.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "plugin/base/clock.h"

namespace twinpath::soft {

void PostedWrites::add(std::unique_ptr<PostedWrite> write) {
  const std::lock_guard hold(lock_);
  if (!started_) {
    started_ = true;
    std::thread thread([this] { run(); });
    pthread_setname_np(thread.native_handle(), "twinpath-late");
    thread.detach();  // lives as long as the adapter, which lives as long as the process
  }
  write->owner = this;
  write->from = {reinterpret_cast<std::uintptr_t>(write->data.get()), -1};
  write->executor = write->to.gpu;
  write->done = placed;
  write->due = now_ns() + delay_ns_;
  Way& way = ways_[{write->pd, write->to.gpu}];
  way.writes.push_back(std::move(write));
  ++way.added;
  changed_.notify_one();
}

bool PostedWrites::push(std::uint32_t pd, int gpu) {
  const std::lock_guard hold(lock_);
  const auto at = ways_.find({pd, gpu});
  if (at == ways_.end() || at->second.writes.empty()) return true;
  for (auto& write : at->second.writes) write->due = 0;
  changed_.notify_one();
  return false;
}

void PostedWrites::place(int gpu) {
  std::unique_lock hold(lock_);
  for (auto& [where, way] : ways_) {
    if (where.second != gpu) continue;
    const std::uint64_t all = way.added;
    for (auto& write : way.writes) write->due = 0;
    changed_.notify_one();
    gone_.wait(hold, [&way = way, all] { return way.placed >= all; });
  }
}

bool PostedWrites::owes(std::int64_t then) {
  const std::lock_guard hold(lock_);
  // In order: the first is due before the others.
  return std::any_of(ways_.begin(), ways_.end(), [then](const auto& way) {
    return !way.second.writes.empty() && way.second.writes.front()->due <= then;
  });
}

// One after the other: copies of one order end in order, but a short one, which is a write-value,
// may be seen before a long one that began earlier.
std::int64_t PostedWrites::place_due(std::int64_t now) {
  std::int64_t next = now + kSecond;
  for (auto& [where, way] : ways_) {
    if (way.writes.empty() || way.placing) continue;
    PostedWrite& first = *way.writes.front();
    if (first.due > now) {
      next = std::min(next, first.due);
      continue;
    }
    way.placing = true;
    if (submit_copy(&first) == Status::ok) continue;
    KeyView::drop(first.held);
    way.take_off();
    gone_.notify_all();
    next = now;
  }
  return next;
}

void PostedWrites::run() {
  std::unique_lock hold(lock_);
  for (;;) {
    const std::int64_t now = now_ns();
    const std::int64_t next = place_due(now);
    if (next > now) changed_.wait_for(hold, std::chrono::nanoseconds(next - now));
  }
}

// Copy thread.  What could not be placed is lost, as what a broken GPU gets is.
void PostedWrites::placed(CopyJob* job, Status) {
  auto& write = *static_cast<PostedWrite*>(job);
  PostedWrites& owner = *write.owner;
  const std::lock_guard hold(owner.lock_);
  Way& way = owner.ways_[{write.pd, write.to.gpu}];
  KeyView::drop(write.held);
  way.take_off();
  owner.changed_.notify_one();
  owner.gone_.notify_all();
}

}  // namespace twinpath::soft
