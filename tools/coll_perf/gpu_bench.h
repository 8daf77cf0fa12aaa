#pragma once
// The GPU half: the table of collectives, and the scenarios.  Each function runs in every rank.
#include "tools/coll_perf/gpu_rank.h"
#include "tools/coll_perf/options.h"
#include "tools/coll_perf/report.h"
#include "tools/common/group.h"

namespace twinpath::coll {

using tools::Group;

struct GpuJob {
  const Options& options;
  Apis apis;
  int gpu;
  Group& group;
  Report& report;
  Watchdog& watchdog;
};

// A fresh id from rank 0, the same on all ranks.
NcclUniqueId shared_id(GpuJob& job);
void run_gpu_table(GpuJob& job);
// Every rank says whether it passed; rank 0 reports.
void run_gpu_scenario(GpuJob& job);

}  // namespace twinpath::coll
