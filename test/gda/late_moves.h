#pragma once
// Teams whose first port fails over late adapters (late_adapter.h), and their GPU, whose driver can
// place what is under way.
//
// Threads: see moves.h.
#include <atomic>

#include "plugin/gpu/driver.h"
#include "test/gda/gpu_window.h"
#include "test/gda/late_adapter.h"
#include "test/gda/move_seeds.h"

namespace twinpath::test {

// Its driver makes visible what adapters have written.
class FlushingGpu : public GpuWithMemory {
 public:
  // `options`: what it says that can.
  explicit FlushingGpu(int options = gpu::cuda::kFlushByHost) {
    says = options;
    flushes = 0;
    driver_.device_attribute = [](int* value, int which, int) {
      if (which != gpu::cuda::kFlushWritesOptions) return 1;
      return *value = says, 0;
    };
    driver_.flush_writes = [](int target, int scope) {
      if (refuses || target != gpu::cuda::kFlushOfCurrentContext || scope < 100) return 1;
      soft::place_posted_writes(0);
      return ++flushes, 0;
    };
  }
  static inline std::atomic<int> flushes{0};
  static inline std::atomic<bool> refuses{false};

 private:
  static inline int says = 0;
};

inline Config late_config() {
  Config config = ordering_config(false);
  config.soft_hcas = "soft0,soft1,soft2";
  config.ib_timeout = 10;  // 4 ms
  return config;
}

inline Config late_and_soon_back() {
  Config config = late_config();
  config.failover_pace = soon_back().failover_pace;
  return config;
}

inline void strike_once(unsigned seed) {
  fault = {"down", seed % 2 != 0, soft::PortLoss::all, 5000 * seed, seed};
  alone = seed > 2;
}

}  // namespace twinpath::test
