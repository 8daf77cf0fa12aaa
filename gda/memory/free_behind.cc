// See free_behind.h.
#include "gda/memory/free_behind.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace twinpath::gda {
namespace {

struct Work {
  std::function<void()> free;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void run() {
    std::exchange(free, nullptr)();
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }
};

}  // namespace

bool free_behind(std::function<void()> free, std::int64_t limit_ns) {
  const auto work = std::make_shared<Work>();
  work->free = std::move(free);
  try {
    std::thread([work] { work->run(); }).detach();
  } catch (const std::system_error&) {  // no more threads
    work->run();
    return true;
  }
  std::unique_lock lock(work->mutex);
  return work->changed.wait_for(lock, std::chrono::nanoseconds(limit_ns),
                                [&] { return work->done; });
}

}  // namespace twinpath::gda
