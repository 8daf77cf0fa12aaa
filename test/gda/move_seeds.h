#pragma once
// Faults of a team's ports by seed, while kernels run until they are over (moves.h).
#include <random>
#include <string>

#include "plugin/base/counter_page.h"
#include "test/gda/moves.h"
#include "test/support/catch.h"
#include "test/support/numbers.h"

namespace twinpath::test {

inline std::string moves(Rank& r) {
  Member member = join_first(r);
  const std::string wrong = play_and_mend(r, member);
  if (r.rank != 0 || !wrong.empty()) return wrong;
  return count_moves(r.devices->counters()->process().gin[0].moves);
}

inline Config soon_back() {
  Config config = merged_config();
  config.failover_pace.settle_ms = 10;
  config.failover_pace.first_pause_ms = 20;
  config.failover_pace.longest_pause_ms = 100;
  return config;
}

// What ranks play, with so many queues to each other one.
struct Played {
  std::string (*ranks)(Rank&) = moves;
  std::size_t queues = 1;
  Config (*config)() = soon_back;
};

// A team plays until the fault is over.  `adjust`: as of run_threads().
inline std::string by_seed(unsigned seed, const Fault& what, const LogCapture& log,
                           const Played& played = {}, void (*adjust)(Fabric&) = nullptr) {
  std::minstd_rand random(seed * 2654435761u);
  (void)random();
  const int ranks = 2 + static_cast<int>(seed % 2);
  fault = what;
  fault.seed = seed;
  fault.after_us = static_cast<std::int64_t>(random() % 20000);
  fault.back_us = static_cast<std::int64_t>(1 + random() % 20000);
  fault.log = &log;
  fault.queues = played.queues * static_cast<std::size_t>(ranks * ranks);
  rounds = kForAsLong + 1;
  furthest = 0;
  alone = seed / 2 % 2 != 0;
  sink_behind = current_sink();
  if (fault.returns) (void)set_log_sink(&losing_sink);
  const std::string wrong = run_threads(ranks, played.ranks, played.config(), adjust);
  (void)set_log_sink(sink_behind);
  rounds = kRounds;
  alone = false;
  return wrong;
}
// The first port loses all without a word, what arrives, or answers.
inline void leave_silent_ports(Scenario moves) {
  Config config = merged_config();
  config.ib_timeout = 22;  // two minutes with all retries, longer than anybody waits
  config.stall_ms = 50;
  for (const soft::PortLoss loss :
       {soft::PortLoss::all, soft::PortLoss::incoming, soft::PortLoss::answers}) {
    fault = {"silent", false, loss, 3000, 5};
    const UntilStruck waits;
    const LogCapture log;
    CHECK(run_threads(2, moves, config) == "");
    CHECK(log.has("leaves soft0 for soft1: it acknowledges nothing"));
  }
}

inline unsigned seeds() { return number_from("TWINPATH_LONG", 0) != 0 ? 500 : 2; }
inline unsigned first_seed() { return static_cast<unsigned>(number_from("TWINPATH_SEED", 5)); }
template <class Run>
void each_seed(Run&& run) {
  for (unsigned seed = first_seed(); seed < first_seed() + seeds(); ++seed) {
    INFO("seed " << seed);
    const LogCapture log;
    run(seed, log);
  }
}

}  // namespace twinpath::test
