#pragma once
// How often which value came, without keeping the values: a latency test of 100 million messages
// takes no more memory than one of ten.  Values are whole numbers (the tools count nanoseconds).
//
// Below 256 each value has a bucket of its own; above, 128 buckets share an octave, so that a
// quantile is off by 0.4 % at most.  Least, largest, sum and count are exact.
//
// Threads: one at a time.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace twinpath::tools {

class Histogram {
 public:
  // All memory that it will ever have (58 KiB), touched: add() takes no page fault.
  Histogram();

  void add(std::uint64_t value);
  void merge(const Histogram& other);

  std::uint64_t count() const { return count_; }
  std::uint64_t min() const { return count_ == 0 ? 0 : min_; }
  std::uint64_t max() const { return max_; }
  double mean() const;
  // Nearest rank, as summarize(); 0 without values.
  double quantile(double q) const;

  // Values from `from` up to but not including `to`.
  struct Bucket {
    double from = 0, to = 0;
    std::uint64_t count = 0;
  };
  // Those with values, ascending, about 8 an octave: enough to look at.
  std::vector<Bucket> buckets() const;

  // Between processes: all that is known.  from_json throws Failure for what is no histogram.
  nlohmann::json to_json() const;
  static Histogram from_json(const nlohmann::json& j);

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0, min_ = ~std::uint64_t{0}, max_ = 0;
  double sum_ = 0;
};

// [[from, to, count], ...]: what documents have.  `unit` is in the histogram's own.
nlohmann::json buckets_json(const Histogram& h, double unit);

}  // namespace twinpath::tools
