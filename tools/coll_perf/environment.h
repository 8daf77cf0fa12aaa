#pragma once
// Environment variables that steer NCCL and the plugin: what --plugin and --via-plugin set.
// Applied by the first process, before NCCL is opened; ranks inherit.
#include <string>
#include <vector>

#include "tools/coll_perf/options.h"

namespace twinpath::coll {

// Sets what the options ask for, never a variable that the user has set (but --plugin wins over
// NCCL_NET_PLUGIN).  Gives one line per variable set.  `nccl_version` 0: no NCCL is involved.
// Leaves the fabric open.
std::vector<std::string> apply_environment(const Options& options, int nccl_version);
// The software adapter for --cpu and --via-plugin, which reaches no other host: for runs on one.
std::vector<std::string> choose_fabric(const Options& options);

}  // namespace twinpath::coll
