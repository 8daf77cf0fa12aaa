#pragma once
// The CPU half: all-reduce over the net plugin's ABI on host memory, the same table.
#include "tools/coll_perf/group.h"
#include "tools/coll_perf/options.h"
#include "tools/coll_perf/report.h"

namespace twinpath::coll {

void run_cpu_table(const Options& options, Group& group, Report& report);

}  // namespace twinpath::coll
