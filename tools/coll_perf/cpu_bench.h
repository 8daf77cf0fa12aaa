#pragma once
// The CPU half: all-reduce over the net plugin's ABI on host memory, the same table.
#include "tools/coll_perf/options.h"
#include "tools/coll_perf/report.h"
#include "tools/common/group.h"

namespace twinpath::coll {

using tools::Group;

void run_cpu_table(const Options& options, Group& group, Report& report);

}  // namespace twinpath::coll
