#pragma once
// net_perf as one process of a job, on one host or several.  Each process starts its worker as on
// one host and watches it; rank 0 supervises all, the others pass on what their worker and rank 0
// say to each other, and end their worker when rank 0 ends.
#include "tools/common/job.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

// Every rank of the job calls it; gives the exit status.  Throws BadUsage and Failure before the
// workers start.
int run_job(int argc, char** argv, Options& options, const Place& place);

}  // namespace twinpath::tools
