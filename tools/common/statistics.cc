#include "tools/common/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace twinpath::tools {

Statistics summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  const auto rank = [&](double q) {
    const auto r = static_cast<std::size_t>(std::ceil(q * static_cast<double>(n)));
    return samples[std::clamp<std::size_t>(r, 1, n) - 1];
  };
  return {.count = n,
          .min = samples.front(),
          .median = rank(0.5),
          .p99 = rank(0.99),
          .p999 = rank(0.999),
          .max = samples.back(),
          .mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(n)};
}

}  // namespace twinpath::tools
