#pragma once
// Test data and expected results.  Element i of rank r is a small integer that depends on both,
// so data of a wrong rank or a wrong offset is found.  It repeats after kPeriod elements, a
// prime: chunk sizes are powers of two, so a shift by any number of chunks shows, and a whole
// block of expected bytes can be prepared once and compared with memcmp.
//
// Threads: one user at a time; blocks are built at first use.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tools/coll_perf/types.h"

namespace twinpath::coll {

inline constexpr std::size_t kPeriod = 65521;
// Largest number of bytes that one block can give from any start in its period.
inline constexpr std::size_t kChunkBytes = 2U << 20;

class Pattern {
 public:
  // `ranks`: how many take part in the widest reduction; it bounds the values.
  Pattern(DataType type, ReduceOp op, int ranks);

  DataType type() const { return type_; }
  std::size_t element_bytes() const { return element_bytes_; }
  // At least kChunkBytes of rank's data from element `start` on.
  const std::byte* data(int rank, std::size_t start);
  // The same for the reduction over `ranks`.
  const std::byte* reduced(std::span<const int> ranks, std::size_t start);
  const std::byte* reduced(std::size_t start) { return reduced(all_, start); }

 private:
  std::uint32_t value(int rank, std::size_t index) const;
  std::vector<std::byte> repeat(const std::vector<std::uint32_t>& values) const;

  DataType type_;
  ReduceOp op_;
  std::size_t element_bytes_;
  std::uint32_t values_;  // data are in [0, values_)
  std::vector<int> all_;
  std::map<std::vector<int>, std::vector<std::byte>> blocks_;  // one rank: plain data
};

}  // namespace twinpath::coll
