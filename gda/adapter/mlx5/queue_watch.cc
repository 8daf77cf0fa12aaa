#include "gda/adapter/mlx5/queue_watch.h"

#include <algorithm>

#include "plugin/base/clock.h"

namespace twinpath::gda::mlx5 {
namespace {

constexpr std::int64_t kAsksPerSecond = 80;

std::vector<std::size_t> in_order(const ContextQueues& queues) {
  std::vector<std::size_t> order;
  for (std::size_t main = 0; main < queues.mains(); ++main)
    for (std::size_t q = main; q < queues.queues(); q += queues.mains())
      if (queues.used(q)) order.push_back(q);
  return order;
}

}  // namespace

std::int64_t ask_interval_ns(std::size_t queues) {
  const auto n = static_cast<std::int64_t>(std::max<std::size_t>(queues, 1));
  return std::clamp(n * kSecond / kAsksPerSecond, kSecond, kLongestRound) / n;
}

QueueWatch::QueueWatch(const ContextQueues& queues)
    : queues_(queues), interval_(ask_interval_ns(in_order(queues).size())) {
  for (const std::size_t q : in_order(queues)) watched_.push_back({q});
}

std::optional<std::size_t> QueueWatch::look(std::int64_t now, int most) {
  due_ = std::max(due_, now - kSecond + 1);  // what was missed before is not made up for
  for (int asked = 0; asked < most && due_ <= now && !watched_.empty(); due_ += interval_) {
    Watched& w = watched_[next_];
    next_ = (next_ + 1) % watched_.size();
    if (w.failed) continue;
    ++asked;
    const auto state = queues_.look(w.queue);
    w.failed = !state || *state == QueueState::error;
    if (!w.failed) continue;
    due_ += interval_;
    return w.queue;
  }
  return std::nullopt;
}

}  // namespace twinpath::gda::mlx5
