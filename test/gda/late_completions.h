#pragma once
// Completions of one of a rank's devices that come later than they would.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>

#include "plugin/base/clock.h"
#include "test/gda/gin_ranks.h"

namespace twinpath::test {

struct LateCompletions {
  // How long that one is held, ns; 0: not at all.
  using Pause = std::int64_t (*)(const ibv_wc&);

  static void hold(const Rank& r, Pause by, int device = 0) {
    auto& poll_cq = r.devices->rails(device).front().port->context->ops.poll_cq;
    below = poll_cq;
    pause = by;
    poll_cq = poll;
  }

 private:
  struct Held {
    ibv_cq* cq;
    ibv_wc wc;
    std::int64_t until;
  };
  static inline int (*below)(ibv_cq*, int, ibv_wc*) = nullptr;
  static inline Pause pause = nullptr;
  static inline std::mutex lock;
  static inline std::deque<Held> held;

  static int poll(ibv_cq* cq, int most, ibv_wc* wcs) {
    const std::lock_guard hold(lock);
    const std::int64_t now = now_ns();
    if (const auto due = std::find_if(held.begin(), held.end(),
                                      [&](const Held& h) { return h.cq == cq && h.until <= now; });
        due != held.end()) {
      *wcs = due->wc;
      held.erase(due);
      return 1;
    }
    const int n = below(cq, most, wcs);
    ibv_wc* const end = std::remove_if(wcs, wcs + std::max(n, 0), [&](const ibv_wc& wc) {
      const std::int64_t late = pause(wc);
      if (late != 0) held.push_back({cq, wc, now + late});
      return late != 0;
    });
    return n < 0 ? n : static_cast<int>(end - wcs);
  }
};

}  // namespace twinpath::test
