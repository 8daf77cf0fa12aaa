#include "plugin/nccl/tuner/choice.h"

namespace twinpath::tuner {
namespace {

// What one step of a ring moves, over all channels.
std::size_t part(abi::ncclFunc_t function, std::size_t bytes, std::size_t ranks) {
  switch (function) {
    case abi::ncclFuncAllGather:
    case abi::ncclFuncReduceScatter:
    case abi::ncclFuncAllReduce:
      return bytes / ranks;
    case abi::ncclFuncBroadcast:
    case abi::ncclFuncReduce:
      break;
  }
  return bytes;
}

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::size_t kMostForLl = 32 * kKiB, kMostForLlOnHost = 64 * kKiB;

struct Row {
  std::size_t up_to;
  int channels;
};
constexpr Row kChannels[] = {
    {16 * kKiB, 1}, {kMostForLl, 2}, {256 * kKiB, 1}, {2 * kMiB, 2}, {4 * kMiB, 4}, {16 * kMiB, 8},
};

}  // namespace

Choice choose(abi::ncclFunc_t function, std::size_t bytes, std::size_t ranks, Memory memory) {
  if (ranks < 2) return {};
  const std::size_t step = part(function, bytes, ranks);
  Choice out;
  if (memory == Memory::host) {
    out.no_ll = step > kMostForLlOnHost;
    return out;
  }
  out.no_ll = step > kMostForLl;
  for (const Row& row : kChannels) {
    if (step > row.up_to) continue;
    out.channels = row.channels;
    break;
  }
  return out;
}

void rule_out(const Choice& choice, float* costs, int algorithms, int protocols) {
  if (!choice.no_ll || protocols <= abi::kProtoSimple) return;
  const auto can_be_had = [](float cost) { return cost >= 0; };
  for (int a = 0; a < algorithms; ++a) {
    float* const row = costs + static_cast<std::ptrdiff_t>(a) * protocols;
    if (can_be_had(row[abi::kProtoSimple]) || can_be_had(row[abi::kProtoLl128]))
      row[abi::kProtoLl] = can_be_had(row[abi::kProtoLl]) ? kTooDear : row[abi::kProtoLl];
  }
}

}  // namespace twinpath::tuner
