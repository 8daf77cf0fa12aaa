// What atomics make of a word.
#include "plugin/gpu/word_operation.h"

#include <random>

#include "test/support/catch.h"

using twinpath::gpu::WordOperation;

namespace {

// Bit by bit, as the extended atomics are described.
std::uint64_t slow(const WordOperation& o, std::uint64_t old) {
  std::uint64_t result = 0;
  if (o.compare) {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << i;
      if ((o.operand[2] & bit) == 0 && (old & bit) != (o.operand[0] & bit)) return old;
      result |= ((o.operand[3] & bit) != 0 ? old : o.operand[1]) & bit;
    }
    return result;
  }
  bool carry = false;
  for (int i = 0; i < 64; ++i) {
    const int sum = static_cast<int>(old >> i & 1) + static_cast<int>(o.operand[0] >> i & 1) +
                    static_cast<int>(carry);
    result |= static_cast<std::uint64_t>(sum & 1) << i;
    carry = sum > 1 && (o.operand[1] >> i & 1) == 0;
  }
  return result;
}

}  // namespace

TEST_CASE("plain atomics add modulo 2^64, and swap all bits if all are as expected") {
  WordOperation add{false, {~std::uint64_t{0}, 0, 0, 0}};
  CHECK(add.plain());
  CHECK(add.result(0) == ~std::uint64_t{0});
  CHECK(add.result(5) == 4);
  const WordOperation swap{true, {5, 9, 0, 0}};
  CHECK(swap.plain());
  CHECK(swap.result(5) == 9);
  CHECK(swap.result(6) == 6);
}

TEST_CASE("masked atomics are what they are bit by bit") {
  std::mt19937_64 random(7);
  const auto some = [&]() -> std::uint64_t {
    const std::uint64_t r = random();
    return r % 5 == 0   ? 0
           : r % 5 == 1 ? ~std::uint64_t{0}
           : r % 5 == 2 ? random() & random()
                        : random();
  };
  for (int i = 0; i < 20'000; ++i) {
    WordOperation o{i % 2 == 0, {some(), some(), some(), some()}};
    const std::uint64_t old = some();
    if (o.compare && i % 4 == 0) o.operand[0] = (old & ~o.operand[2]) | (some() & o.operand[2]);
    REQUIRE(o.result(old) == slow(o, old));
  }
}
