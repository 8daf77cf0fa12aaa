#include "tools/coll_perf/pattern.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tools/coll_perf/error.h"

namespace twinpath::coll {

Pattern::Pattern(DataType type, ReduceOp op, int ranks)
    : type_(type), op_(op), element_bytes_(type_info(type).bytes) {
  const std::uint32_t exact = type_info(type).max_exact;
  const auto n = static_cast<std::uint32_t>(std::max(ranks, 1));
  values_ = std::min<std::uint32_t>(op == ReduceOp::sum ? exact / n + 1 : exact, 251);
  if (values_ < 2) {
    throw ToolError(kExitUsage, strf("sums of %d ranks are not exact in %s; use --check 0 or a "
                                     "wider type",
                                     ranks, type_info(type).name));
  }
  all_.resize(n);
  std::iota(all_.begin(), all_.end(), 0);
}

std::uint32_t Pattern::value(int rank, std::size_t index) const {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) << 32) + index + 1;
  x *= 0x9e3779b97f4a7c15U;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 32;
  // Products stay exact when at most six ranks bring a factor of two.
  if (op_ == ReduceOp::prod) return rank < 6 ? 1 + static_cast<std::uint32_t>(x & 1) : 1;
  return static_cast<std::uint32_t>(x % values_);
}

std::vector<std::byte> Pattern::repeat(const std::vector<std::uint32_t>& values) const {
  const std::size_t period_bytes = kPeriod * element_bytes_;
  std::vector<std::byte> block(period_bytes + kChunkBytes);
  for (std::size_t i = 0; i < kPeriod; ++i) encode(type_, values[i], &block[i * element_bytes_]);
  for (std::size_t at = period_bytes; at < block.size();) {
    const std::size_t n = std::min(at, block.size() - at);
    std::memcpy(&block[at], block.data(), n);  // `at` is a multiple of the period
    at += n;
  }
  return block;
}

const std::byte* Pattern::reduced(std::span<const int> ranks, std::size_t start) {
  std::vector<int> key(ranks.begin(), ranks.end());
  auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    std::vector<std::uint32_t> values(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      std::uint32_t total = value(key.front(), i);
      for (std::size_t k = 1; k < key.size(); ++k) {
        const std::uint32_t v = value(key[k], i);
        switch (op_) {
          case ReduceOp::sum:
            total += v;
            break;
          case ReduceOp::prod:
            total *= v;
            break;
          case ReduceOp::max:
            total = std::max(total, v);
            break;
          case ReduceOp::min:
            total = std::min(total, v);
            break;
        }
      }
      values[i] = total;
    }
    found = blocks_.emplace(std::move(key), repeat(values)).first;
  }
  return found->second.data() + (start % kPeriod) * element_bytes_;
}

const std::byte* Pattern::data(int rank, std::size_t start) {
  const int one[] = {rank};
  return reduced(one, start);
}

}  // namespace twinpath::coll
