#pragma once
// What each collective moves: counts, where data lies in place, what every rank must hold
// afterwards, and how time becomes bandwidth.  Pure functions; the GPU and the CPU half share
// them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/coll_perf/pattern.h"

namespace twinpath::coll {

enum class Collective { all_reduce, all_gather, reduce_scatter, broadcast, sendrecv, alltoall };

const char* collective_name(Collective c);
// "all_reduce,alltoall" or "all".
std::vector<Collective> parse_collectives(const std::string& list);

// Elements [at, at+count) of a buffer hold elements from `from` on of rank `source`, or of the
// reduction over all ranks (source == kReduced).
inline constexpr int kReduced = -1;
struct Segment {
  std::size_t at = 0;
  std::size_t count = 0;
  int source = kReduced;
  std::size_t from = 0;
};

struct Plan {
  Collective collective = Collective::all_reduce;
  std::size_t count = 0;       // as printed, and the count given to NCCL
  std::size_t bytes = 0;       // as printed: the larger of the two buffers
  std::size_t send_count = 0;  // elements of the send buffer
  std::size_t recv_count = 0;
  bool reduces = false;
  int root = -1;
  bool can_be_in_place = true;
  // Element offsets of the two pointers in the one buffer of an in-place call.
  std::size_t in_place_send = 0;
  std::size_t in_place_recv = 0;
  std::vector<Segment> expected;  // of the receive buffer, complete
  double bus_factor = 1;          // bus bandwidth = bytes / time * factor
};

// `shift` moves all data in the pattern, so that results of an earlier round are not taken for
// this one's.  A size too small for one element per rank is rounded up.
Plan make_plan(Collective c, std::size_t bytes, std::size_t element_bytes, int rank, int ranks,
               std::size_t shift);
// The shift of a round of checking; not a multiple of anything.
inline std::size_t round_shift(std::uint64_t round) {
  return static_cast<std::size_t>(round % 9973 * 7919) % kPeriod;
}

// Compares `count` elements at `got` (host memory, at most kChunkBytes) with `expected`;
// describes the first wrong one in `first` when that is still empty.
std::uint64_t count_wrong(DataType type, const std::byte* got, const std::byte* expected,
                          std::size_t count, std::size_t at, std::string& first);

}  // namespace twinpath::coll
