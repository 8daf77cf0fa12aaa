#pragma once
// The parent: starts workers (processes or threads), hears what they do, and ends the run at
// the first failure or at the deadline, whichever comes first.
#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/common/channel.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

using WorkerMain = void (*)(const Options& options, int rank, Channel control, Channel peer);

// The parts of a run whose other workers another program started; see job.h.
struct Abroad {
  std::vector<Channel> controls;   // of workers 1, 2, ...; worker 0 is started here
  Channel peer;                    // of worker 0, to worker 1
  std::vector<std::string> hosts;  // by worker, for messages
};

struct Supervisor {
  // argv is repeated for worker processes.
  int argc;
  char** argv;
  const Options& options;
  WorkerMain worker_main;
  Abroad* abroad;  // nullptr: all workers are started here
  // A result line of a worker; and how far the run is, 0..1, with the current phase.
  std::function<void(int rank, const nlohmann::json&)> on_result;
  std::function<void(double fraction, const std::string& phase)> on_progress;

  // Runs to the end, once.  False after a failure; `why` has one line per worker that had one.
  // After Ctrl-C or SIGTERM `why` says so, and `interrupted` is the signal.
  bool run(std::string& why);
  int interrupted = 0;
};

// One worker process: this program again, with `argv` and what tells a worker its place.  It dies
// with the thread that calls this.  Throws Failure.
pid_t start_worker(int argc, char** argv, const Options& options, int rank, const Channel& control,
                   const Channel& peer);
// Waits up to `seconds` for it; clears `pid` when it was reaped.
bool reap_worker(pid_t& pid, int& status, int seconds);
// How a worker that closed its control socket ended; reaps it.
std::string worker_death(pid_t& pid);
// Reaps a worker that has said "done", and ends it when it stays; empty when all is well.
std::string end_worker(pid_t& pid);

}  // namespace twinpath::tools
