#pragma once
// How ranks come to be: started here as processes, or by mpirun or srun.  A started rank is this
// same program with the same arguments; its place is told in one environment variable and its
// control sockets are inherited.  exec and not only fork: neither CUDA nor NCCL survives a fork.
#include <optional>
#include <string>
#include <vector>

#include "tools/coll_perf/group.h"
#include "tools/coll_perf/options.h"

namespace twinpath::coll {

struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  const char* from = "";  // "", "OpenMPI", "PMI", "Slurm"
};

// The place that our own launcher gave this process, with its control sockets.
std::optional<Place> started_place(std::vector<UniqueFd>& links);
// The place that mpirun or srun gave it; nothing for a job of one rank.
std::optional<Place> job_place();

// Starts `size` ranks and waits for all; gives the exit status of the whole.  When one fails the
// others get ten seconds to notice before they are killed.  `victim`: this one kills itself.
int run_processes(int size, int victim);

// Connects the ranks of a job over TCP; see rendezvous.cc for where rank 0 is looked for.
std::vector<UniqueFd> rendezvous(const Place& place, const std::string& option, double timeout_s);

// The first name of a Slurm node list: "node[07-12,15],other" -> "node07"; "" when a bracket is
// not closed.
std::string first_node(const std::string& list);

}  // namespace twinpath::coll
