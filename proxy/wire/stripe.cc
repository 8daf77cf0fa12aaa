#include "proxy/wire/stripe.h"

#include <algorithm>

namespace twinpath {

__extension__ using Wide = unsigned __int128;

StripePlan plan_stripes(std::size_t bytes, std::span<const std::uint32_t> weights) {
  StripePlan plan;
  const std::size_t lanes = std::min<std::size_t>(weights.size(), kMaxQps);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < lanes; ++i) sum += weights[i];
  const bool equal = sum == 0;
  if (equal) sum = std::max<std::size_t>(lanes, 1);

  std::size_t at = 0;
  std::uint64_t share = 0;
  for (std::size_t i = 0; i < lanes && at < bytes; ++i) {
    share += equal ? 1 : weights[i];
    std::size_t end = bytes;
    if (share < sum) {
      // Cumulative, so that rounding never adds up; 128 bits because bytes * Mb/s may not fit 64.
      const auto exact =
          static_cast<std::size_t>((static_cast<Wide>(bytes) * share + sum - 1) / sum);
      end = std::min(bytes, (exact + kStripeAlign - 1) / kStripeAlign * kStripeAlign);
    }
    if (end <= at) continue;
    plan.chunks[static_cast<std::size_t>(plan.count++)] = {static_cast<int>(i), at, end - at};
    at = end;
  }
  if (plan.count == 0) plan.count = 1;  // the empty message
  return plan;
}

int queues_for(int local_qps, int remote_qps, int local_rails, int remote_rails) {
  const int queues = std::max(local_qps, remote_qps) * std::max(local_rails, remote_rails);
  return std::clamp(queues, 1, kMaxQps);
}

}  // namespace twinpath
