#include "tools/common/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tools/common/failure.h"

namespace twinpath::tools {
namespace {

constexpr int kExactBits = 8;                    // values below 2^8 have buckets of their own
constexpr std::size_t kExact = 1 << kExactBits;  // so many
constexpr std::size_t kPerOctave = kExact / 2;
constexpr std::size_t kBuckets = kExact + (64 - kExactBits) * kPerOctave;
constexpr int kShownBits = 3;
constexpr double kShown = 1 << kShownBits;  // an octave

std::size_t bucket_of(std::uint64_t value) {
  if (value < kExact) return static_cast<std::size_t>(value);
  const int shift = static_cast<int>(std::bit_width(value)) - kExactBits;  // 1 or more
  const auto top = static_cast<std::size_t>(value >> shift);               // 128 .. 255
  return kExact + static_cast<std::size_t>(shift - 1) * kPerOctave + top - kPerOctave;
}

// The least value of a bucket; of kBuckets, 2^64.
double begin_of(std::size_t bucket) {
  if (bucket < kExact) return static_cast<double>(bucket);
  const std::size_t above = bucket - kExact;
  return std::ldexp(static_cast<double>(kPerOctave + above % kPerOctave),
                    static_cast<int>(above / kPerOctave) + 1);
}

}  // namespace

Histogram::Histogram() : counts_(kBuckets, 0) {}

void Histogram::add(std::uint64_t value) {
  ++counts_[bucket_of(value)];
  ++count_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
}

void Histogram::merge(const Histogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double Histogram::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(q * static_cast<double>(count_));
  const auto rank = static_cast<std::uint64_t>(std::max(wanted, 1.0));
  // These two are known.
  if (rank <= 1) return static_cast<double>(min_);
  if (rank >= count_) return static_cast<double>(max_);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += counts_[i];
    if (seen < rank) continue;
    const double middle = i < kExact ? begin_of(i) : (begin_of(i) + begin_of(i + 1)) / 2;
    return std::clamp(middle, static_cast<double>(min()), static_cast<double>(max()));
  }
  return static_cast<double>(max());
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  std::vector<Bucket> out;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (counts_[i] == 0) continue;
    // An octave of the exact values is as wide as they are; from 8 on it can be cut into eighths.
    const double value = begin_of(i);
    const int octave = value < kShown ? 0 : std::ilogb(value) - kShownBits;
    const double width = std::ldexp(1, octave), from = std::floor(value / width) * width;
    if (out.empty() || out.back().from != from) out.push_back({from, from + width, 0});
    out.back().count += counts_[i];
  }
  return out;
}

nlohmann::json Histogram::to_json() const {
  nlohmann::json counts = nlohmann::json::array();
  for (std::size_t i = 0; i < kBuckets; ++i)
    if (counts_[i] != 0) counts.push_back({i, counts_[i]});
  return {{"counts", std::move(counts)}, {"min", min_}, {"max", max_}, {"sum", sum_}};
}

Histogram Histogram::from_json(const nlohmann::json& j) {
  Histogram h;
  try {
    for (const nlohmann::json& pair : j.at("counts")) {
      const auto bucket = pair.at(0).get<std::size_t>();
      if (bucket >= kBuckets) throw Failure("a histogram has a bucket that there is none of");
      h.counts_[bucket] += pair.at(1).get<std::uint64_t>();
      h.count_ += pair.at(1).get<std::uint64_t>();
    }
    h.min_ = j.at("min").get<std::uint64_t>();
    h.max_ = j.at("max").get<std::uint64_t>();
    h.sum_ = j.at("sum").get<double>();
  } catch (const nlohmann::json::exception& e) {
    throw Failure(std::string("what a worker sent is no histogram: ") + e.what());
  }
  return h;
}

nlohmann::json buckets_json(const Histogram& h, double unit) {
  nlohmann::json out = nlohmann::json::array();
  for (const Histogram::Bucket& b : h.buckets())
    out.push_back({b.from / unit, b.to / unit, b.count});
  return out;
}

}  // namespace twinpath::tools
