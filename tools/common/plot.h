#pragma once
// The results of a run as a picture (SVG): panels below each other, in each some series of figures,
// with a legend at its right.  Everything in one file, no script and no font of its own.
//
// Pure but for the last two.
#include <optional>
#include <string>
#include <vector>

namespace twinpath::tools {

struct PlotPoint {
  double x = 0, y = 0;
  // From the least to the largest of what y stands for; drawn as a bar.
  std::optional<double> low = {}, high = {};
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  // ascending x
};

struct PlotAxis {
  std::string title;         // with the unit
  bool logarithmic = false;  // what is not above 0 then stands at the axis' lower end
  bool bytes = false;        // ticks at powers of two, as 64k
};

struct PlotPanel {
  std::string title;
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::optional<double> line_at = {};  // a level to compare with
};

// `heading`: lines above the first panel.
std::string plots_svg(const std::vector<std::string>& heading,
                      const std::vector<PlotPanel>& panels);

// To be asked before minutes of measuring: empty, or why FILE of --plot cannot be written.
std::string plot_file_complaint(const std::string& file);
// Throws Failure where the file cannot be written.
void write_plots(const std::string& file, const std::vector<std::string>& heading,
                 const std::vector<PlotPanel>& panels);

}  // namespace twinpath::tools
