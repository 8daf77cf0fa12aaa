#pragma once
// When a queue pair may be moved to its next state again after the adapter refused: an address that
// does not resolve yet (a neighbour's cache is cold, a subnet manager is busy) is often there a
// moment later.  As NCCL's own transport does it, but nobody sleeps: the caller comes again.
//
// Threads: one at a time.
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/config.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

struct RetrySettings {
  int count = 0;              // further tries of one move; 0: none
  std::int64_t pause_ns = 0;  // before the first of them; before the n-th n times this
  bool any_error = false;     // not of ETIMEDOUT alone
  std::int64_t limit_ns = 0;  // of one move, from its first failure
};
// NCCL_IB_MQP_RETRY_CNT, _SLEEP_MSEC and _ALL, within three quarters of
// TWINPATH_CONNECT_TIMEOUT_MS: the peer, which waits meanwhile, should hear the reason before its
// own time is up.
RetrySettings retry_settings(const Config& config);

class ModifyRetry {
 public:
  explicit ModifyRetry(const RetrySettings& settings) : settings_(settings) {}

  bool due(std::int64_t now) const { return now >= next_; }
  std::int64_t due_in(std::int64_t now) const { return next_ > now ? next_ - now : 0; }
  // A try failed for that errno.  True: there will be another, when due() says so.
  bool failed(int error, std::int64_t now);
  // The move was made; the next one has all its tries.
  void succeeded() { failures_ = 0, next_ = 0; }
  int failures() const { return failures_; }

 private:
  RetrySettings settings_;
  int failures_ = 0;
  std::int64_t first_ = 0, next_ = 0;
};

// The errno value of what a call like ibv_modify_qp gave, errno having been cleared before: the
// library sets errno and providers return the value, or its negative; some do only one of these.
// 0 for 0, -1 where it failed without a reason.
int call_error(int result);

// ibv_modify_qp: 0, or the error as call_error() gives it.
int move_pair(const Verbs& verbs, ibv_qp* qp, ibv_qp_attr& attr, int mask);

}  // namespace twinpath
