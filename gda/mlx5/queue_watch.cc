#include "gda/mlx5/queue_watch.h"

#include "plugin/base/clock.h"

namespace twinpath::gda::mlx5 {

QueueWatch::QueueWatch(const ContextQueues& queues) : queues_(queues) {
  for (std::size_t q = 0; q < queues.queues(); ++q)
    if (queues.used(q)) watched_.push_back({q});
}

std::optional<std::size_t> QueueWatch::look(std::int64_t now) {
  int asks = 0;
  for (std::size_t i = 0; i < watched_.size() && asks < kAsksAtOnce; ++i) {
    Watched& w = watched_[next_];
    next_ = (next_ + 1) % watched_.size();
    if (w.failed || (w.asked_once && now - w.asked < kSecond)) continue;
    ++asks;
    w.asked = now;
    w.asked_once = true;
    const auto state = queues_.look(w.queue);
    w.failed = !state || *state == QueueState::error;
    if (w.failed) return w.queue;
  }
  return std::nullopt;
}

}  // namespace twinpath::gda::mlx5
