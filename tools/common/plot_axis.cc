#include "tools/common/plot_axis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "tools/common/units.h"

namespace twinpath::tools {
namespace {

constexpr double kMostTicks = 9;
constexpr std::size_t kLeastTicks = 3;

// 1, 2 or 5 times a power of ten, `range` / kMostTicks or more.
double round_step(double range) {
  const double least = range / kMostTicks, power = std::pow(10, std::floor(std::log10(least)));
  for (const double times : {1.0, 2.0, 5.0})
    if (times * power >= least * (1 - 1e-9)) return times * power;
  return 10 * power;
}

}  // namespace

std::string tick_label(double value) {
  char text[32];
  const double size = std::fabs(value);
  const double unit = size >= 1e9 ? 1e9 : size >= 1e6 ? 1e6 : size >= 1e4 ? 1e3 : 1;
  std::snprintf(text, sizeof text, "%.4g%s", value / unit,
                unit == 1e9   ? "G"
                : unit == 1e6 ? "M"
                : unit == 1e3 ? "k"
                              : "");
  return text;
}

Scale::Scale(const PlotAxis& axis, const std::vector<double>& values, double from, double to)
    : axis_(axis), from_(from), to_(to) {
  double low = std::numeric_limits<double>::max(), high = std::numeric_limits<double>::lowest();
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    if (axis.logarithmic && v <= 0) {
      has_zero_ = true;
      continue;
    }
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (low > high) low = high = 1;  // nothing to go by
  if (axis.logarithmic) {
    low_ = axis.bytes ? std::log2(low) : std::log10(low);
    high_ = axis.bytes ? std::log2(high) : std::log10(high);
    floor_ = low_ - (axis.bytes ? 1 : 0.3);
    if (has_zero_) low_ = floor_;
    // Room at both ends, and a width where there is one value.
    const double room = std::max((high_ - low_) * 0.04, axis.bytes ? 0.3 : 0.05);
    low_ -= room;
    high_ += room;
    return;
  }
  low_ = std::min(low, 0.0);
  high_ = high > low_ ? high + (high - low_) * 0.05 : low_ + 1;
}

double Scale::place(double value) const {
  if (!std::isfinite(value)) return low_;
  if (!axis_.logarithmic) return value;
  if (value <= 0) return floor_;
  return axis_.bytes ? std::log2(value) : std::log10(value);
}

double Scale::at(double value) const {
  return from_ + (std::clamp(place(value), low_, high_) - low_) / (high_ - low_) * (to_ - from_);
}

std::vector<Tick> Scale::ticks() const {
  if (!axis_.logarithmic) return plain_ticks(low_, high_);
  std::vector<Tick> out = axis_.bytes ? byte_ticks() : decade_ticks();
  // Within a decade, or an octave, equal steps are near enough to each other.
  if (out.size() < kLeastTicks) {
    const double base = axis_.bytes ? 2 : 10, low = has_zero_ ? floor_ : low_;
    std::vector<Tick> even = plain_ticks(std::pow(base, low), std::pow(base, high_));
    if (even.size() > out.size()) out = std::move(even);
  }
  if (has_zero_) out.insert(out.begin(), {at(0), "0"});
  return out;
}

std::vector<Tick> Scale::byte_ticks() const {
  std::vector<Tick> out;
  const double begin = std::max(std::ceil(has_zero_ ? floor_ + 1 : low_), 0.0);
  const double step = std::max(std::ceil((high_ - begin) / (kMostTicks + 3)), 1.0);
  for (double power = begin; power <= high_ && power < 63; power += step) {
    const double value = std::exp2(power);
    out.push_back({at(value), format_bytes(static_cast<std::size_t>(value))});
  }
  return out;
}

std::vector<Tick> Scale::decade_ticks() const {
  std::vector<Tick> out;
  const double step = std::max(std::ceil((high_ - low_) / kMostTicks), 1.0);
  const bool between = high_ - low_ < 3;  // few decades: 2 and 5 as well
  for (double power = std::floor(low_); power <= high_; power += step)
    for (const double times : {1.0, 2.0, 5.0}) {
      if (times != 1 && !between) continue;
      const double value = times * std::pow(10, power), where = std::log10(value);
      if (where >= low_ && where <= high_) out.push_back({at(value), tick_label(value)});
    }
  return out;
}

std::vector<Tick> Scale::plain_ticks(double low, double high) const {
  std::vector<Tick> out;
  const double step = round_step(high - low);
  for (double i = std::ceil(low / step); i * step <= high; ++i)
    out.push_back({at(i * step), tick_label(i * step)});
  return out;
}

}  // namespace twinpath::tools
