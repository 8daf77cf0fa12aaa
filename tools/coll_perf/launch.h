#pragma once
// Ranks that are started here, as processes; tools/common/job.h is about those of mpirun and srun.
// A started rank is this same program with the same arguments; its place is told in one environment
// variable and its control sockets are inherited.  exec and not only fork: neither CUDA nor NCCL
// survives a fork.
#include <optional>
#include <vector>

#include "plugin/base/owned.h"
#include "tools/common/job.h"

namespace twinpath::coll {

using tools::Place;

// The place that our own launcher gave this process, with its control sockets.
std::optional<Place> started_place(std::vector<UniqueFd>& links);

// Starts `size` ranks and waits for all; gives the exit status of the whole.  When one fails the
// others get ten seconds to notice before they are killed.  `victim`: this one kills itself.
int run_processes(int size, int victim);

}  // namespace twinpath::coll
