// See retired.h.
#include "gda/memory/retired.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <utility>

#include "gda/memory/signal_release.h"
#include "plugin/base/clock.h"

namespace twinpath::gda {
namespace {

// How long to pause after it.
std::chrono::nanoseconds release(const std::deque<Retired::Memory>& memories) {
  const std::int64_t start = now_ns();
  for (const auto& memory : memories)
    if (memory.release) memory.release();
  return std::chrono::nanoseconds{release_pause(now_ns() - start)};
}

}  // namespace

// Process-wide because the driver's lock is.
Retired& Retired::of_process() {
  static Retired retired;
  return retired;
}

// At the process's end the driver may be gone: nothing is freed any more.
Retired::~Retired() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (releasing_.joinable()) releasing_.join();
  if (!kept_.empty()) (void)new std::deque<Memory>(std::move(kept_));
}

void Retired::enter() {
  const std::lock_guard lock(mutex_);
  ++contexts_;
}

void Retired::leave() {
  const std::lock_guard lock(mutex_);
  --contexts_;
}

std::size_t Retired::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

// What is let go below keeps its words until all is freed: the first may wait for kernels of the
// last.
void Retired::free_all(std::deque<Memory>& memories) {
  std::atomic<bool> freed{false};
  std::thread releasing;
  try {
    releasing = std::thread([&] {
      while (!freed.load(std::memory_order_relaxed)) std::this_thread::sleep_for(release(memories));
    });
  } catch (const std::system_error&) {  // no more threads
    (void)release(memories);
  }
  for (const Memory& memory : memories) memory.free();
  freed.store(true, std::memory_order_relaxed);
  if (releasing.joinable()) releasing.join();
  memories.clear();
}

bool Retired::put(Memory memory, std::int64_t limit_ns) {
  auto now = std::make_shared<std::deque<Memory>>();
  {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(memory));
    if (contexts_ == 0) {
      now->swap(kept_);
    } else if (kept_.size() > kMost) {
      now->push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
    if (!kept_.empty() && !releasing_.joinable()) {
      try {
        releasing_ = std::thread([this] { run(); });
      } catch (const std::system_error&) {  // no more threads: kernels were let go once
      }
    }
  }
  changed_.notify_all();
  return now->empty() || free_behind([now] { free_all(*now); }, limit_ns);
}

void Retired::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (kept_.empty())
      changed_.wait(lock);
    else
      changed_.wait_for(lock, release(kept_));
  }
}

}  // namespace twinpath::gda
