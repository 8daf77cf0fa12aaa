#include "proxy/queues/queue_grave.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "plugin/base/blocked_signals.h"

namespace twinpath {

QueueGrave::~QueueGrave() {
  {
    const std::lock_guard hold(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool QueueGrave::start() {
  if (thread_.joinable()) return true;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void QueueGrave::bury(Owned<ibv_qp> qp, CompletionEngine* engine, int entries) {
  Body body{std::move(qp), engine, entries};
  {
    const std::lock_guard hold(mutex_);
    if (start()) {
      bodies_.push_back(std::move(body));
      changed_.notify_one();
      return;
    }
  }
  destroy(std::move(body));
}

void QueueGrave::destroy(Body body) {
  body.qp.reset();
  give_back_(body.engine, body.entries);
}

void QueueGrave::run() {
  (void)::pthread_setname_np(::pthread_self(), "twinpath-bury");
  std::unique_lock hold(mutex_);
  while (true) {
    changed_.wait(hold, [this] { return stop_ || !bodies_.empty(); });
    if (bodies_.empty()) return;
    std::vector<Body> now = std::exchange(bodies_, {});
    hold.unlock();
    for (Body& body : now) destroy(std::move(body));
    hold.lock();
  }
}

}  // namespace twinpath
