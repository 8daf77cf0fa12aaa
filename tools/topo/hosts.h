#pragma once
// `check` on several hosts: by ssh (--hosts), or as one process of a job that mpirun, srun or a
// person started.  Every process looks at its own host, rank 0 compares and prints.
//
// Threads: one.
#include "tools/common/job.h"
#include "tools/topo/compare.h"
#include "tools/topo/options.h"

namespace twinpath::tools::topo {

struct HostsReport {
  std::vector<HostCard> cards;
  std::vector<PairTry> tries;
  Checks checks;
};

// As one rank of several: what rank 0 has to print; nullopt on the others.  Throws BadUsage,
// Failure.
std::optional<HostsReport> check_as_rank(const Options& options, const Place& place,
                                         const Report& own);

// Starts this program on each host of `options.hosts`, the first as rank 0, whose output and exit
// status are this one's.  Throws BadUsage, Failure.
int check_by_ssh(const Options& options);

// "a,b@c" -> {"a", "b@c"}.  Throws BadUsage for fewer than two, or an empty one.
std::vector<std::string> split_hosts(const std::string& text);
// For a shell: 'it'\''s'.  Pure.
std::string quoted(const std::string& text);

}  // namespace twinpath::tools::topo
