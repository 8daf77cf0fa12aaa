// See engine.h.
#include "gda/team/engine.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/base/cpus.h"
#include "plugin/base/sync.h"
#include "plugin/gpu/near_cpus.h"

namespace twinpath::gda {
namespace {

constexpr std::int64_t kLookAround = 100 * kMillisecond;
// How long a round without work is followed by another at once.  A kernel that comes back within
// this time finds the engine awake; with few cores the kernel's own CPU threads need ours.
constexpr std::int64_t kSpin = 10 * kMillisecond;
constexpr std::int64_t kShortSleep = 20 * 1000;
// The peers' work for us waits for the same sleep on fabrics that are software.
constexpr std::int64_t kLongSleep = 200 * 1000;
constexpr std::int64_t kLongIdle = kSecond;
constexpr std::int64_t kGlance = kLongSleep;

void sleep_ns(std::int64_t ns) {
  const timespec t{0, static_cast<long>(ns)};
  (void)::nanosleep(&t, nullptr);
}

}  // namespace

std::shared_ptr<Engine> Engine::of(int gpu, EngineChoice choice, HelperCpus cpus,
                                   CounterPage* page) {
  // One per GPU of the process, like the GPU's context itself: communicators do not know of each
  // other.  Only a cache, empty when no context is left.
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Engine>> known;
  const std::lock_guard hold(mutex);
  std::shared_ptr<Engine> engine = known[gpu].lock();
  if (!engine)
    known[gpu] = engine = std::make_shared<Engine>(
        gpu, choice, cpus,
        page != nullptr ? page->open_gin(gpu) : std::make_shared<counters::GinCounts>());
  return engine;
}

Engine::Engine(int gpu, EngineChoice choice, HelperCpus cpus,
               std::shared_ptr<counters::GinCounts> counts)
    : gpu_(gpu), choice_(choice), cpus_(cpus), counts_(std::move(counts)) {
  thread_ = std::thread([this] { run(); });
  const std::string name = "twinpath-gin" + (gpu < 0 ? std::string() : std::to_string(gpu));
  (void)pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

Engine::~Engine() {
  {
    const std::lock_guard hold(mutex_);
    stop_.store(true, std::memory_order_relaxed);
  }
  woken_.notify_all();
  thread_.join();
}

void Engine::add(EngineClient& client) {
  {
    const std::lock_guard hold(mutex_);
    wanted_.push_back(&client);
    spare_ = wanted_;
    changed_.store(true, std::memory_order_release);
  }
  pass_round();
}

void Engine::remove(EngineClient& client) {
  {
    const std::lock_guard hold(mutex_);
    std::erase(wanted_, &client);
    spare_ = wanted_;
    changed_.store(true, std::memory_order_release);
  }
  pass_round();
}

void Engine::pass_round() {
  std::unique_lock hold(mutex_);
  // Two: the first may have been under way.
  const std::uint64_t mine = asked_ = std::max(asked_, passed_ + 2);
  changed_.store(true, std::memory_order_release);
  woken_.notify_all();
  round_passed_.wait(hold, [&] { return passed_ >= mine; });
}

std::uint32_t Engine::take_numbers(std::uint32_t count) {
  const std::lock_guard hold(mutex_);
  if (next_number_ + count > 0xffffff) next_number_ = kFirstNumber;
  const std::uint32_t first = next_number_;
  next_number_ += count;
  return first;
}

// Between two rounds: takes over the list of clients and counts the round for those who wait.
void Engine::adopt_changes() {
  {
    const std::lock_guard hold(mutex_);
    serving_.swap(spare_);
    spare_ = wanted_;  // has the room already, unless it shrank: then less is needed
    ++passed_;
    changed_.store(asked_ > passed_, std::memory_order_relaxed);
  }
  round_passed_.notify_all();
}

void Engine::idle(std::int64_t since, int cpus) {
  const std::int64_t now = now_ns();
  const std::int64_t quiet = now - since;
  Pause pause = pause_after(choice_ == EngineChoice::spin ? 0 : quiet, cpus, kSpin);
  if (choice_ == EngineChoice::sleep) pause = Pause::sleep;
  switch (pause) {
    case Pause::spin:
      return cpu_relax();
    case Pause::yield:
      (void)sched_yield();
      return;
    case Pause::sleep:
      return sleep_ns(quiet < kLongIdle ? kShortSleep : kLongSleep);
  }
}

void Engine::sleep_until_changed(std::int64_t limit_ns) {
  std::unique_lock hold(mutex_);
  woken_.wait_for(hold, std::chrono::nanoseconds(limit_ns), [&] {
    return changed_.load(std::memory_order_relaxed) || stop_.load(std::memory_order_relaxed);
  });
}

void Engine::run() {
  const int cpus = place_helper(cpus_, gpu::near_cpus(gpu_));
  std::int64_t last_work = now_ns();
  std::int64_t looked = last_work, began = last_work, glanced = last_work;
  bool turns = true;
  const auto ask = [&] {
    turns = serving_.empty() || std::any_of(serving_.begin(), serving_.end(),
                                            [](auto* client) { return client->needs_turns(); });
  };
  while (!stop_.load(std::memory_order_relaxed)) {
    if (changed_.load(std::memory_order_acquire)) {
      adopt_changes();
      ask();
    }
    bool moved = false;
    const bool glances = began - glanced >= kGlance;
    if (glances) glanced = began;
    for (EngineClient* client : serving_) {
      if (client->turn())
        moved = true;
      else if (glances)
        client->glance();
    }
    if (moved) {
      last_work = now_ns();
    } else if (!turns) {
      sleep_until_changed(kLookAround);
    } else {
      idle(last_work, cpus);
    }
    const std::int64_t now = now_ns();
    if (moved) counts_->busy_ns.add(static_cast<std::uint64_t>(now - began));
    began = now;
    if (now - looked >= kLookAround) {
      looked = now;
      for (EngineClient* client : serving_) client->look_around();
      ask();
    }
  }
}

}  // namespace twinpath::gda
