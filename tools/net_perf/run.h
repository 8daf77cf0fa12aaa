#pragma once
// A whole run of one plugin: workers, report, exit status.
#include <string>

#include "tools/net_perf/report.h"
#include "tools/net_perf/supervisor.h"

namespace twinpath::tools {

// Runs all workers, whose figures `report` takes.  False after a failure, with `why` in lines.
// `abroad` as in Supervisor.
bool run_once(int argc, char** argv, const Options& options, Abroad* abroad, Report& report,
              std::string& why);

// The same, printed; gives the exit status.
int run_workers(int argc, char** argv, const Options& options, Abroad* abroad);

}  // namespace twinpath::tools
