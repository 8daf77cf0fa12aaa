#pragma once
// What an atomic makes of a word of 64 bits.
#include <cstdint>

namespace twinpath::gpu {

// Adds, or swaps when the word is as expected; in either case only to the bits that it may touch,
// as the extended atomics of mlx5 adapters do.  All zero in [2] and [3], and in [1] of an add, is
// the InfiniBand specification's plain atomic.
struct WordOperation {
  bool compare = false;
  // compare: [0] expected, [1] new value, [2] bits that are not compared, [3] bits that stay.
  // add: [0] what is added, [1] the last bits of fields, out of which nothing is carried.
  std::uint64_t operand[4] = {};

  bool plain() const { return compare ? operand[2] == 0 && operand[3] == 0 : operand[1] == 0; }
  constexpr std::uint64_t result(std::uint64_t old) const {
    if (compare) {
      if (((old ^ operand[0]) & ~operand[2]) != 0) return old;
      return (old & operand[3]) | (operand[1] & ~operand[3]);
    }
    // Each field is added without its last bit, into which the carry goes; that one is the sum of
    // three bits without the carry of its own.
    const std::uint64_t last = operand[1];
    return ((old & ~last) + (operand[0] & ~last)) ^ ((old ^ operand[0]) & last);
  }
};

}  // namespace twinpath::gpu
