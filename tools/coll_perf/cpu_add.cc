#include <algorithm>

#include "tools/coll_perf/cpu_all_reduce.h"
#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

template <class T>
void add_elements(std::byte* out_bytes, const std::byte* a_bytes, const std::byte* b_bytes,
                  std::size_t count) {
  auto* out = reinterpret_cast<T*>(out_bytes);
  const auto* a = reinterpret_cast<const T*>(a_bytes);
  const auto* b = reinterpret_cast<const T*>(b_bytes);
  std::size_t i = 0;
  // Fixed inner length: the compiler vectorises it at -O2 too.
  constexpr std::size_t kBlock = 64 / sizeof(T);
  for (; i + kBlock <= count; i += kBlock) {
    T sum[kBlock];
    for (std::size_t k = 0; k < kBlock; ++k) sum[k] = static_cast<T>(a[i + k] + b[i + k]);
    for (std::size_t k = 0; k < kBlock; ++k) out[i + k] = sum[k];
  }
  for (; i < count; ++i) out[i] = static_cast<T>(a[i] + b[i]);
}

}  // namespace

void add(DataType type, std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  switch (type) {
    case DataType::float32:
      return add_elements<float>(out, a, b, count);
    case DataType::int32:
      return add_elements<std::int32_t>(out, a, b, count);
    case DataType::int8:
      return add_elements<std::int8_t>(out, a, b, count);
    default:
      throw ToolError(kExitUsage, "this type is not offered with --cpu");
  }
}

std::size_t slice_elements(std::size_t bytes, std::size_t element_bytes) {
  constexpr std::size_t kSmallest = 16U << 10;
  const std::size_t eighth = (bytes / kDepth + 4095) / 4096 * 4096;
  return std::clamp(eighth, kSmallest, kSliceBytes) / element_bytes;
}

Neighbours neighbours(Algorithm algorithm, int rank, int ranks) {
  Neighbours out;
  if (algorithm == Algorithm::ring) {
    out.send_to = {(rank + 1) % ranks};
    out.recv_from = {(rank + ranks - 1) % ranks};
    return out;
  }
  // A binary heap: children first, the parent last.
  for (const int child : {2 * rank + 1, 2 * rank + 2}) {
    if (child < ranks) out.send_to.push_back(child);
  }
  if (rank > 0) out.send_to.push_back((rank - 1) / 2);
  out.recv_from = out.send_to;
  return out;
}

}  // namespace twinpath::coll
