#pragma once
// What the sides' threads share: how they meet, what they measure together, and the watchdog.
//
// Threads: one per side, all running the same tests in step; side 0's also reports.
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/gda_perf/error.h"
#include "tools/gda_perf/options.h"
#include "tools/gda_perf/rank.h"
#include "tools/gda_perf/report.h"

namespace twinpath::gda_perf {

// Ends the process when one step takes too long, so that a GPU or a call that never returns
// becomes a message and an exit status.
class Watchdog {
 public:
  explicit Watchdog(double limit_s);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  void step(const std::string& what);  // any thread

 private:
  void watch();

  const double limit_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_ = "start";
  std::uint64_t steps_ = 0;
  bool over_ = false;
  std::thread thread_;
};

// Says what is wrong and ends the process at once: a peer's kernel or a collective call may never
// come back, so nothing can be cleaned up in order.
[[noreturn]] void give_up(ExitCode code, const std::string& why);

// `work(i)` in `count` threads; whatever one throws ends the process.
void in_threads(int count, const std::function<void(int)>& work);

// CPU time of all threads of this process, and the time that passed.
struct Spent {
  double cpu_s = 0, wall_s = 0;
  static Spent now();
  Spent operator-(const Spent& o) const { return {cpu_s - o.cpu_s, wall_s - o.wall_s}; }
};

class Bench {
 public:
  Bench(const Options& chosen, Report& shown, Watchdog& dog, int sides)
      : options(chosen),
        report(shown),
        watchdog(dog),
        words(static_cast<std::size_t>(sides)),
        samples(static_cast<std::size_t>(sides)),
        meeting_(sides) {}

  void meet() { meeting_.arrive_and_wait(); }

  const Options& options;
  Report& report;
  Watchdog& watchdog;
  // Each side writes its own between two meetings; side 0 reads them after the second.
  std::vector<std::uint64_t> words;          // wrong ones
  std::vector<std::vector<double>> samples;  // microseconds or rates

 private:
  std::barrier<> meeting_;
};

// One side's thread: its place, and the steps that all tests have in common.
struct Part {
  Bench& bench;
  Player& player;
  int index;

  bool initiator() const { return index % 2 == 0; }
  // Meets; then signals and counters are zero, `fill` bytes of pattern are in the send area, as
  // many zeros in the receive area, and all sides know it.
  void prepare(const std::string& what, std::size_t fill);
  // Launches, waits for the end, and meets; the outcomes are in player.outcomes().
  Spent run(const std::string& what, int blocks, const std::function<cudaError_t()>& launch);
  // Words of the receive area that are not what the peer sent.
  std::uint64_t verify(std::size_t bytes, bool stamped, std::uint64_t stamp);
  // Waits for signals of the peer; gives how many came too much.
  std::uint64_t await(const std::string& what, const AwaitArgs& args);
  // This side's results to side 0, which makes the row.
  void hand_in(std::uint64_t wrong, std::vector<double> mine,
               const std::function<void(std::uint64_t wrong, std::vector<double>& all)>& make);
};

void run_latency(Part& part, Test test);
void run_rate(Part& part);
void run_counters(Part& part);
void run_stream(Part& part);

}  // namespace twinpath::gda_perf
