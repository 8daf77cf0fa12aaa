#pragma once
// Teams whose first port fails over late adapters (late_adapter.h), and their GPU, whose driver can
// place what is under way; and the tests that kernels and hosts share, which check.
//
// Threads: see moves.h.
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>

#include "plugin/gpu/driver.h"
#include "test/gda/gpu_window.h"
#include "test/gda/late_adapter.h"
#include "test/gda/move_seeds.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::test {

// Its driver makes visible what adapters have written.
class FlushingGpu : public GpuWithMemory {
 public:
  // `options`: what it says that can.
  explicit FlushingGpu(int options = gpu::cuda::kFlushByHost) {
    says = options;
    flushes = 0;
    takes_ms = 0;
    driver_.device_attribute = [](int* value, int which, int) {
      if (which != gpu::cuda::kFlushWritesOptions) return 1;
      return *value = says, 0;
    };
    driver_.flush_writes = [](int target, int scope) {
      if (refuses || target != gpu::cuda::kFlushOfCurrentContext || scope < 100) return 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(takes_ms));
      soft::place_posted_writes(0);
      return ++flushes, 0;
    };
  }
  static inline std::atomic<int> flushes{0};
  static inline std::atomic<bool> refuses{false};
  static inline std::atomic<int> takes_ms{0};

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

inline void leaves_late(std::initializer_list<unsigned> seeds, Scenario moves) {
  FlushingGpu gpu;
  for (const unsigned seed : seeds) {
    INFO("seed " << seed);
    strike_once(seed);
    const UntilStruck waits;
    const LogCapture log;
    const int before = FlushingGpu::flushes;
    CHECK(run_threads(2 + static_cast<int>(seed / 4), moves, late_config()) == "");
    CHECK(log.has("leaves soft0 for soft1"));
    CHECK(FlushingGpu::flushes > before);
  }
  alone = false;
}

// `moves` waits until that many queues of two ranks are over one port.  `slow`: the GPU's copies.
inline void goes_back_late(bool slow, std::size_t queues, Scenario moves) {
  FlushingGpu gpu;
  gpu.slow = slow;
  alone = false;
  const LogCapture log;
  fault = {"down", true};
  fault.log = &log;
  fault.queues = queues;
  CHECK(run_threads(2, moves, late_and_soon_back()) == "");
  CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  fault.log = nullptr;
}

// `queues`: from each rank to each, of that fault.
inline void goes_back_late_by_seed(Scenario moves, std::size_t (*queues)(const Fault&)) {
  FlushingGpu gpu;
  each_seed([&](unsigned seed, const LogCapture& log) {
    Fault often{"often", seed % 2 != 0, soft::PortLoss::all};
    often.times = 3;
    CHECK(by_seed(seed, often, log, {moves, queues(often), late_and_soon_back}) == "");
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

inline void ends_where_the_driver_fails(Scenario refused) {
  FlushingGpu gpu;
  FlushingGpu::refuses = true;
  fault = {"down", true};
  Config config = late_config();
  config.failover_hold_ms = 100;
  const LogCapture log;
  CHECK(run_threads(2, refused, config) == "");
  FlushingGpu::refuses = false;
  CHECK(log.has("GPU 0: its driver cannot make visible what adapters wrote"));
  CHECK_FALSE(log.has(LogLevel::info, "goes on over soft1"));
}

// Queues between the two ranks are over the first port of one and the second of the other.
inline void in_order_over_crossed_ports(Scenario words) {
  FlushingGpu gpu;
  gpu.whole_words = true;
  gpu.slow = true;
  Config config = late_config();
  config.soft_hcas = "soft0,soft1";
  const LogCapture log;
  CHECK(run_threads(2, words, config) == "");
  CHECK(log.has("is over one of the two at both ends"));
  CHECK(log.warnings().empty());
}

}  // namespace twinpath::test
