#pragma once
// Puts test data into GPU buffers and compares results with what they must be, through pinned
// memory in pieces of kChunkBytes.
//
// Threads: the rank's thread.
#include <cstdint>
#include <span>
#include <string>

#include "tools/coll_perf/collective.h"
#include "tools/coll_perf/gpu_rank.h"
#include "tools/coll_perf/pattern.h"

namespace twinpath::coll {

class GpuData {
 public:
  GpuData(const Apis& apis, CuStream stream, double timeout_s);

  // Fills the segments of the buffer at `to`.
  void fill(CuDevicePtr to, Pattern& pattern, std::span<const Segment> segments);
  // Bytes that no test data contain.
  void poison(CuDevicePtr to, std::size_t bytes);
  // Number of wrong elements; `first` describes one.  `members` non-empty: kReduced means the
  // reduction over these ranks only.
  std::uint64_t count_wrong(CuDevicePtr from, Pattern& pattern, std::span<const Segment> segments,
                            std::string& first, std::span<const int> members = {});
  // Number of bytes in [from, from + bytes), at most kChunkBytes, that are poison no more.
  std::uint64_t count_touched(CuDevicePtr from, std::size_t bytes);
  void wait(const char* what);

 private:
  static const std::byte* source(Pattern& pattern, const Segment& s, std::size_t offset,
                                 std::span<const int> members);

  Apis apis_;
  CuStream stream_;
  double timeout_s_;
  PinnedBuffer pinned_;  // two chunks
};

// Starts one collective.
void start_collective(const NcclApi& nccl, const Plan& plan, DataType type, ReduceOp op,
                      CuDevicePtr send, CuDevicePtr recv, NcclComm comm, int rank, int ranks,
                      CuStream stream);

}  // namespace twinpath::coll
