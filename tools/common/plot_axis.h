#pragma once
// Where a figure stands along an axis of plot.h, and the ticks beside it.  Pure.
#include <string>
#include <vector>

#include "tools/common/plot.h"

namespace twinpath::tools {

struct Tick {
  double at = 0;  // px
  std::string label;
};

class Scale {
 public:
  // `values`: all that has to find room; from and to are px, `from` the lower end.
  Scale(const PlotAxis& axis, const std::vector<double>& values, double from, double to);
  double at(double value) const;  // px
  std::vector<Tick> ticks() const;

 private:
  double place(double value) const;  // in octaves, decades or plain
  std::vector<Tick> byte_ticks() const;
  std::vector<Tick> decade_ticks() const;
  std::vector<Tick> plain_ticks(double low, double high) const;

  PlotAxis axis_;
  double from_, to_;
  double low_ = 0, high_ = 1;  // places
  double floor_ = 0;           // logarithmic: the place of what is not above 0
  bool has_zero_ = false;
};

// Three digits at most, and k, M or G: 0.02, 1.5, 20k.
std::string tick_label(double value);

}  // namespace twinpath::tools
