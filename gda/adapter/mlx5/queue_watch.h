#pragma once
// Whether queues that an adapter serves still live.  A queue that fails writes error completions,
// which kernels do not leave their loops for, and no thread of ours reads completions: so each
// queue's state is asked for (QUERY_QP).
//
// Not by events: an adapter raises one for what it cannot put into a completion
// (InfiniBand 11.6.3), and what fails here it can, a peer that does not answer above all.  Not by
// looking at completions: they lie in GPU memory, and where the next stands only kernels know.
//
// Asking takes the adapter some 0.25 ms, and the firmware answers all processes of the host one
// after the other.  So few queues are asked once a second, more of them 80 a second, and however
// many there are, each within kLongestRound, which is NCCL's own interval.  Queues stand in the
// order of peers, with companions beside their mains: one that fails at all its queues is found
// long before the round ends.
//
// Threads: one at a time.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gda/adapter/mlx5/context_queues.h"

namespace twinpath::gda::mlx5 {

// Between two questions, for so many queues; pure.
inline constexpr std::int64_t kLongestRound = 10'000'000'000;
std::int64_t ask_interval_ns(std::size_t queues);

class QueueWatch {
 public:
  // `queues` outlives it.
  explicit QueueWatch(const ContextQueues& queues);

  // Asks for those whose time has come, `most` of them.  A queue (ContextQueues numbers) that has
  // failed since, each once: in state ERR, or of whom the adapter says nothing; then there may be
  // more to ask for.  `now`: now_ns.
  std::optional<std::size_t> look(std::int64_t now, int most);

 private:
  struct Watched {
    std::size_t queue = 0;
    bool failed = false;
  };
  const ContextQueues& queues_;
  std::vector<Watched> watched_;
  const std::int64_t interval_;
  std::size_t next_ = 0;
  std::int64_t due_ = 0;
};

}  // namespace twinpath::gda::mlx5
