#pragma once
// Which failed completions the path may be blamed for, so that other queues are worth a try.
// Others are somebody's mistake, and would be so again.
//
// Threads: one at a time.
#include <cstdint>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

constexpr bool of_the_path(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_GENERAL_ERR:
      return true;
    default:
      return false;
  }
}

class PathErrors {
 public:
  // To be asked once of each error; `now`: now_ns().
  bool blamed(ibv_wc_status status, std::int64_t now) {
    return of_the_path(status) || may_be(status, now);
  }

 private:
  // A mistake that is made again after the queues were replaced comes within this.
  static constexpr std::int64_t kMistakeAgain = 500 * kMillisecond;
  // Of a port that goes down adapters say so (soft-RoCE does: it has lost its route) some moments
  // before they tell that it does, or before its state says so.  Of an adapter that is unplugged
  // the kernel takes memory before queue pairs, and tells its process last: its peers are refused.
  // The same statuses are what adapters have for mistakes: those would be made again at once, over
  // whichever queues there are then.
  bool may_be(ibv_wc_status status, std::int64_t now) {
    if (status != IBV_WC_LOC_QP_OP_ERR && status != IBV_WC_REM_ACCESS_ERR) return false;
    const std::int64_t last = std::exchange(doubtful_at_, now);
    return last == 0 || now - last > kMistakeAgain;
  }

  std::int64_t doubtful_at_ = 0;  // the last that could be a mistake; 0: none
};

}  // namespace twinpath
