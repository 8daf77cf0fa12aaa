#pragma once
// The ranks' control channel: a star of stream sockets around rank 0 that carries the unique id,
// barriers and results.  The sockets are socket pairs between threads or local processes, or TCP
// connections under mpirun and Slurm; the rest of a tool does not see which.
//
// Threads: one per rank.  Every call waits at most the timeout given, then throws Failure.
#include <cstddef>
#include <utility>
#include <vector>

#include "plugin/base/owned.h"
#include "tools/common/failure.h"

namespace twinpath::tools {

class Group {
 public:
  // links: rank 0 has one per other rank, in rank order; the others have one, to rank 0.
  Group(int rank, int size, std::vector<UniqueFd> links, double timeout_s)
      : rank_(rank), size_(size), links_(std::move(links)), timeout_s_(timeout_s) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The sockets, for another use; the group is of none then.
  std::vector<UniqueFd> take_links() { return std::move(links_); }
  const std::vector<UniqueFd>& links() const { return links_; }

  void broadcast(void* data, std::size_t bytes);                // from rank 0
  void gather(const void* mine, std::size_t bytes, void* all);  // to rank 0
  void all_gather(const void* mine, std::size_t bytes, void* all);
  void barrier();
  // Throws Failure when a rank at the other end of a link has gone; waits for nothing.  For waiting
  // on something else that such a rank would have to do.
  void check_links() const;

  // Between rank 0 and one other; `peer` is 0 on the others.
  void send_to(int peer, const void* data, std::size_t bytes);
  void receive_from(int peer, void* data, std::size_t bytes);

  // One group per rank of this process or of processes to be started.
  static std::vector<std::vector<UniqueFd>> socket_pairs(int size);

 private:
  int link(int peer) const;
  Failure gone(int peer) const;

  int rank_;
  int size_;
  std::vector<UniqueFd> links_;
  double timeout_s_;
};

}  // namespace twinpath::tools
