#pragma once
// Whether queues that an adapter serves still live.  A queue that fails writes error completions,
// which kernels do not leave their loops for, and no thread of ours reads completions: so each
// queue's state is asked for, once a second.
//
// Threads: one at a time.
#include <cstdint>
#include <optional>
#include <vector>

#include "gda/mlx5/context_queues.h"

namespace twinpath::gda::mlx5 {

class QueueWatch {
 public:
  // An adapter answers in some 0.25 ms.
  static constexpr int kAsksAtOnce = 8;

  // `queues` outlives it.
  explicit QueueWatch(const ContextQueues& queues);

  // Asks for some that were not asked within the last second.  A queue (ContextQueues numbers) that
  // has failed since, each once: in state ERR, or of whom the adapter says nothing.  `now`: now_ns.
  std::optional<std::size_t> look(std::int64_t now);

 private:
  struct Watched {
    std::size_t queue = 0;
    std::int64_t asked = 0;
    bool asked_once = false, failed = false;
  };
  const ContextQueues& queues_;
  std::vector<Watched> watched_;
  std::size_t next_ = 0;
};

}  // namespace twinpath::gda::mlx5
