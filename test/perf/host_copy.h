#pragma once
// What large copies of host memory over the soft HCA bring, by number of helping threads: two
// ranks, a thread each that posts and polls as NCCL's proxy does, many queue pairs, several
// messages of each under way.
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugin/fabric/verbs.h"

namespace twinpath::perf {

struct Settings {
  int queue_pairs = 16;
  std::size_t bytes = 1 << 20;  // of a message
  int window = 2;               // messages of a queue pair under way
  int slots = 8;                // buffers of a queue pair, one after the other
  double seconds = 1;
  bool huge = false;
};

enum class Way : std::uint8_t { hca, raw };

// One row of the table.
struct Variant {
  Way way = Way::hca;
  bool both = true;  // both ranks send
  int threads = 0;   // hca: that help; raw: that copy, in each sending rank
  std::size_t share = 64 * 1024;
  bool stream = false;
};

// What the ranks tell each other; lies in memory that both map.
struct Board {
  struct Rank {
    int pid = 0;
    std::uint64_t buffers = 0;
    std::uint32_t rkey = 0;
    ibv_gid gid{};
    std::array<std::uint32_t, 64> qpn{};
    std::atomic<std::uint64_t> moved{0};
    std::atomic<std::uint64_t> cpu_us{0};
  };
  std::array<Rank, 2> ranks;
  std::atomic<std::uint32_t> met{0};
  std::atomic<bool> failed{false};
  // Both ranks are here; false: one of them gave up.
  bool meet() {
    const std::uint32_t mine = met.fetch_add(1);
    const std::uint32_t all = (mine / 2 + 1) * 2;
    while (met.load() < all && !failed.load()) sched_yield();
    return !failed.load();
  }
};

// Plays a rank through all variants; rank 0 prints.  `together`: both are threads of one process.
void play(Board& board, int rank, bool together, const Settings& settings,
          const std::vector<Variant>& variants);

}  // namespace twinpath::perf
