#pragma once
// Jobs whose processes another program started, on one host or on several: by mpirun, srun, or by
// hand with --rank.  What such a process is told, and what it then finds out about the others.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/owned.h"
#include "tools/common/group.h"

namespace twinpath::tools {

struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;     // among the ranks of its host; -1: not told, Hosts knows
  const char* from = "";  // "", "--rank", or a launcher of job.cc
};

// Lookup as getenv; tests pass a map.
using Lookup = std::function<const char*(const char*)>;
// The place that torchrun, mpirun or srun gave this process; nothing for a job of one rank.  Throws
// BadUsage when the variables contradict each other.
std::optional<Place> job_place(const Lookup& lookup);
// "0/2": rank 0 of two.  Throws BadUsage.
Place parse_place(const std::string& text);
// --rank where it was given, else the launcher's unless `ignore_launcher`; nothing otherwise.
std::optional<Place> find_place(const std::string& rank_option, bool ignore_launcher);

// Connects the ranks over TCP: rank 0 gets a socket for each other rank, in order, the others one
// to rank 0.  job_address.h says where rank 0 is looked for.  `option` is HOST:PORT or empty.
// Says on standard error for whom it waits when that takes more than a few seconds.  Throws
// BadUsage where that address is not known or none, Failure after `timeout_s`.
std::vector<UniqueFd> rendezvous(const Place& place, const std::string& option, double timeout_s);

// Who shares a host with whom.  Two network namespaces of one host count as two: the software
// adapter, for one, does not reach from one to the other.
class Hosts {
 public:
  // Every rank of the group calls it.
  explicit Hosts(Group& group);
  const std::vector<std::string>& names() const { return names_; }  // by rank
  bool one() const { return count_ == 1; }
  int count() const { return count_; }
  int ranks_beside(int rank) const;  // on the host of `rank`, itself included
  int local_rank(int rank) const;

 private:
  std::vector<std::string> names_;
  std::vector<int> host_;  // by rank: the lowest rank of the same host
  int count_ = 0;
};

}  // namespace twinpath::tools
