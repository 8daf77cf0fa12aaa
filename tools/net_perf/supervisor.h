#pragma once
// The parent: starts workers (processes or threads), hears what they do, and ends the run at
// the first failure or at the deadline, whichever comes first.
#include <functional>
#include <nlohmann/json.hpp>

#include "tools/common/channel.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

using WorkerMain = void (*)(const Options& options, int rank, Channel control, Channel peer);

struct Supervisor {
  // argv is repeated for worker processes.
  int argc;
  char** argv;
  const Options& options;
  WorkerMain worker_main;
  // A result line of a worker; and how far the run is, 0..1, with the current phase.
  std::function<void(int rank, const nlohmann::json&)> on_result;
  std::function<void(double fraction, const std::string& phase)> on_progress;

  // Runs to the end.  False after a failure; `why` has one line per worker that had one.
  bool run(std::string& why);
};

}  // namespace twinpath::tools
