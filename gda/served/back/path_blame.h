#pragma once
// Whether an error completion is of the way to the peer, and not of the work request itself.
//
// Of a port that goes down an adapter may say so by an error of the local queue pair, before it
// tells that it does (soft-RoCE does: it has lost its route).  The same status is what adapters
// have for mistakes; but a mistake is made again at once, over whichever queue pair there is then.
//
// Threads: one at a time.
#include <infiniband/verbs.h>

#include <cstdint>

#include "gda/abi/operation.h"
#include "plugin/base/clock.h"

namespace twinpath::gda {

// What an error CQE says for an error completion of verbs.
Syndrome syndrome_of(ibv_wc_status status);

class PathBlame {
 public:
  // To be asked once of each error; `done`: what has completed so far.
  bool blamed(ibv_wc_status status, std::uint64_t done, std::int64_t now) {
    if (status != IBV_WC_LOC_QP_OP_ERR) return !is_own_fault(syndrome_of(status));
    const bool again = last_ != 0 && done == done_ && now - last_ < kAgain;
    last_ = now;
    done_ = done;
    return !again;
  }

 private:
  static constexpr std::int64_t kAgain = 500 * kMillisecond;
  std::int64_t last_ = 0;  // 0: none
  std::uint64_t done_ = 0;
};

}  // namespace twinpath::gda
