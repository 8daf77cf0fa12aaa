#pragma once
// Order statistics of repeated measurements.  Medians, p99 and p99.9, because means hide the tail.
#include <cstddef>
#include <vector>

namespace twinpath::tools {

struct Statistics {
  std::size_t count = 0;
  double min = 0, median = 0, p99 = 0, p999 = 0, max = 0, mean = 0;
};

// Nearest-rank quantiles; all zero for no samples.
Statistics summarize(std::vector<double> samples);

}  // namespace twinpath::tools
