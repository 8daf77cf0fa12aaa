// tools/common/plot.h: where figures stand, and that any of them can be drawn.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "test/support/catch.h"
#include "tools/common/plot.h"
#include "tools/common/plot_axis.h"

using namespace twinpath::tools;

namespace {

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<std::string> labels(const Scale& scale) {
  std::vector<std::string> out;
  for (const Tick& t : scale.ticks()) out.push_back(t.label);
  return out;
}

}  // namespace

TEST_CASE("Sizes stand at equal distances, each at its tick, and 0 before them") {
  const Scale s({"", true, true}, {0, 8, 64, 512}, 100, 500);
  CHECK(s.at(64) - s.at(8) == Approx(s.at(512) - s.at(64)));
  CHECK(s.at(0) < s.at(8));
  CHECK(s.at(0) >= 100);
  CHECK(s.at(512) <= 500);
  const auto all = labels(s);
  CHECK(all.front() == "0");
  for (const char* label : {"8", "64", "512"})
    CHECK(std::count(all.begin(), all.end(), label) == 1);
  for (const Tick& t : s.ticks())
    if (t.label == "64") CHECK(t.at == Approx(s.at(64)));
}

TEST_CASE("A plain axis begins at 0 and has room for its largest value") {
  const Scale s({""}, {3, 97}, 300, 0);  // upwards
  CHECK(s.at(0) == 300);
  CHECK(s.at(97) > 0);
  CHECK(s.at(97) < s.at(3));
  const auto all = labels(s);
  CHECK(all.front() == "0");
  CHECK(all.size() >= 4);
  CHECK(all.size() <= 11);
}

TEST_CASE("Within a decade, or an octave, there are labels to read values by") {
  struct Row {
    bool bytes;
    std::vector<double> values;
    std::vector<std::string> some;
  };
  for (const Row& row :
       {Row{false, {21, 33}, {"20", "25", "35"}}, Row{false, {1.01, 4.9}, {"1", "2", "5"}},
        Row{false, {0.0061, 0.0093}, {"0.006", "0.009"}}, Row{false, {5, 5}, {"5"}},
        Row{true, {5000, 7000}, {"5000", "6000"}}, Row{true, {3000, 3000}, {"3000"}}}) {
    const Scale s({"", true, row.bytes}, row.values, 0, 400);
    const auto all = labels(s);
    INFO(row.values[0] << " to " << row.values.back());
    CHECK(all.size() >= 3);
    CHECK(all.size() <= 12);
    for (const std::string& label : row.some) {
      INFO(label);
      CHECK(std::count(all.begin(), all.end(), label) == 1);
    }
    double last = -1;
    for (const Tick& t : s.ticks()) {
      CHECK(t.at > last + 12);  // px: the labels of an axis upwards do not touch
      last = t.at;
    }
  }
}

TEST_CASE("No axis is without ticks or beyond its ends, whatever the values") {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> cases{
      {},       {0},         {5},       {100001},       {0.3, 0.4},       {1e-9, 1e12}, {-4, 9},
      {NAN, 1}, {inf, 2, 3}, {7, 7, 7}, {0, 0, 1e-300}, {1.5e18, 1.6e18}, {1e300, 1e5}, {1, 1e300}};
  for (const auto& values : cases)
    for (const PlotAxis& axis : {PlotAxis{""}, PlotAxis{"", true}, PlotAxis{"", true, true}}) {
      const Scale s(axis, values, 10, 90);
      const auto ticks = s.ticks();
      CHECK(!ticks.empty());
      CHECK(ticks.size() < 40);
      for (const Tick& t : ticks) CHECK((t.at >= 10 && t.at <= 90));
      for (const double v : values) CHECK((s.at(v) >= 10 && s.at(v) <= 90));
    }
}

TEST_CASE("Labels are short") {
  CHECK(tick_label(0) == "0");
  CHECK(tick_label(0.05) == "0.05");
  CHECK(tick_label(1500) == "1500");
  CHECK(tick_label(20000) == "20k");
  CHECK(tick_label(2.5e6) == "2.5M");
  CHECK(tick_label(3e9) == "3G");
}

TEST_CASE("A picture has each series, its points, spread and legend, and is XML") {
  PlotPanel panel{"time & <bytes>", {"bytes", true, true}, {"us", true}, {}};
  panel.series.push_back({"a<b", {{8, 1.5}, {64, 2, 1.0, 4.0}}});
  panel.series.push_back({"one point", {{8, 3}}});
  panel.series.push_back({"none", {}});
  panel.line_at = 1;
  const std::string svg = plots_svg({"name \"x\"", "second\x01line"}, {panel, panel});
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(svg.find("</svg>") != std::string::npos);
  CHECK(times(svg, "<path ") == 2);              // a series of one point has no line
  CHECK(times(svg, "<circle ") == 2 * (3 + 3));  // points and legends
  CHECK(times(svg, "a&lt;b") == 2);
  CHECK(times(svg, "time &amp; &lt;bytes&gt;") == 2);
  CHECK(svg.find("name &quot;x&quot;") != std::string::npos);
  CHECK(svg.find('\x01') == std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(plots_svg({}, {}).find("no figures") != std::string::npos);
}

TEST_CASE("More series than colours still have room in the legend") {
  PlotPanel panel{"many", {"bytes", true, true}, {"GB/s"}, {}};
  for (int i = 0; i < 60; ++i)
    panel.series.push_back({"series " + std::to_string(i), {{8, 1.0 * i}, {16, 2.0 * i}}});
  const std::string svg = plots_svg({"x"}, {panel});
  const auto at = svg.find("height=\"");
  CHECK(std::stod(svg.substr(at + 8)) > 60 * 16);
  CHECK(svg.find(">series 59<") != std::string::npos);
}

TEST_CASE("A file of --plot is tried without leaving or changing one") {
  CHECK(plot_file_complaint("").empty());
  const std::string why = plot_file_complaint("/nonexistent/folder/x.svg");
  CHECK(why.find("--plot /nonexistent/folder/x.svg cannot be written: No such file") == 0);
  CHECK(!plot_file_complaint("/").empty());
  char folder[] = "/tmp/plot_test_XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string file = std::string(folder) + "/x.svg";
  CHECK(plot_file_complaint(file).empty());
  CHECK(access(file.c_str(), F_OK) != 0);
  write_plots(file, {"first"}, {});
  CHECK(plot_file_complaint(file).empty());
  CHECK(access(file.c_str(), F_OK) == 0);
  CHECK_THROWS(write_plots(std::string(folder), {"x"}, {}));
  CHECK_THROWS(write_plots("/dev/full", {"x"}, {}));
  unlink(file.c_str());
  rmdir(folder);
}
