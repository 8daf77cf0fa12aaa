#pragma once
// Ring and tree all-reduce on host memory, as state machines that are polled: every step only
// posts, polls and adds.  Data are cut into slices of at most 256 KiB; a rank's own data go out
// of the user's buffer and results come into it, only partial sums pass through scratch memory.
//
// Threads: the rank's only thread.
#include <memory>

#include "tools/coll_perf/cpu_link.h"
#include "tools/coll_perf/options.h"
#include "tools/coll_perf/types.h"

namespace twinpath::coll {

// Whom a rank talks to.
struct Neighbours {
  std::vector<int> send_to, recv_from;
};
Neighbours neighbours(Algorithm algorithm, int rank, int ranks);
// Scratch memory that an all-reduce needs.
inline constexpr std::size_t kScratchBytes = 2 * kDepth * kSliceBytes;

struct AllReduceJob {
  DataType type = DataType::float32;
  std::size_t count = 0;
  int rank = 0;
  int ranks = 1;
  bool in_place = false;  // the input is in kOutput
};

class AllReduce {
 public:
  virtual ~AllReduce() = default;
  // One pass; true when something moved.
  virtual bool progress() = 0;
  virtual bool finished() const = 0;
};

std::unique_ptr<AllReduce> start_ring(const AllReduceJob& job, Links& links,
                                      const Regions& regions);
std::unique_ptr<AllReduce> start_tree(const AllReduceJob& job, Links& links,
                                      const Regions& regions);

// out[i] = a[i] + b[i]; out may be a.
void add(DataType type, std::byte* out, const std::byte* a, const std::byte* b, std::size_t count);
// Slices so that eight are outstanding when there is enough to send.
std::size_t slice_elements(std::size_t bytes, std::size_t element_bytes);

}  // namespace twinpath::coll
