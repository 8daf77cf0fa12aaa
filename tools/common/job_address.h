#pragma once
// Where the ranks of a job look for rank 0, and what tells their job from another's.  Pure.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/job.h"

namespace twinpath::tools {

struct JobAddress {
  std::vector<std::string> hosts;  // names or addresses, tried one after the other in each round
  std::string port;
};

// First that is known: `option` (--rendezvous), MASTER_ADDR and MASTER_PORT, this host when all
// ranks are on it, what the launcher tells: a Slurm step its nodes, Open MPI where mpirun runs, in
// a Slurm job also its first node.  The port follows from the job where nobody gives one, so that
// two jobs on a host do not meet.  `own_host` as gethostname().  Throws BadUsage where nothing is
// known, and on a rank 0 of Open MPI that is where nobody looks for it.
JobAddress job_address(const Place& place, const std::string& option, const std::string& own_host,
                       const Lookup& lookup);

// The same on all ranks, and another one in the next job.  Only of variables that each rank has:
// mpirun's ranks on other hosts are in a Slurm step, those beside it are not.
std::uint64_t job_hash(const Place& place, const Lookup& lookup);

// The first name of a Slurm node list: "node[07-12,15],other" -> "node07"; "" when a bracket is
// not closed.
std::string first_node(const std::string& list);

}  // namespace twinpath::tools
