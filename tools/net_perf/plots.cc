#include "tools/net_perf/plots.h"

#include <algorithm>
#include <utility>

#include "tools/common/circumstances.h"
#include "tools/common/units.h"

namespace twinpath::tools {
namespace {

using nlohmann::json;

const PlotAxis kSize{"message size, bytes", true, true};

PlotSeries series(const std::string& name, const json& rows, const char* x, const char* y) {
  PlotSeries s{name, {}};
  for (const json& r : rows)
    if (r.contains(y)) s.points.push_back({r[x].get<double>(), r[y].get<double>()});
  return s;
}

PlotPanel panel_of(const char* title, const PlotAxis& x, PlotAxis y,
                   std::vector<PlotSeries> series) {
  PlotPanel panel;
  panel.title = title;
  panel.x = x;
  panel.y = std::move(y);
  panel.series = std::move(series);
  return panel;
}

// For each size, which share of the messages took how long.
PlotPanel distribution(const json& rows) {
  PlotPanel panel{"distribution of one-way times", {"us", true}, {"% of the messages", true}, {}};
  for (const json& r : rows) {
    PlotSeries s{format_bytes(r["size"].get<std::size_t>()), {}};
    const double all = r["samples"].get<double>();
    for (const json& b : r["histogram_us"])
      s.points.push_back(
          {(b[0].get<double>() + b[1].get<double>()) / 2, 100 * b[2].get<double>() / all});
    panel.series.push_back(std::move(s));
  }
  return panel;
}

std::vector<PlotPanel> latency_plots(const json& rows) {
  PlotPanel times{"latency, one way", kSize, {"us", true}, {}};
  for (const auto& [name, key] : {std::pair{"median", "median_us"}, std::pair{"p99", "p99_us"},
                                  std::pair{"p99.9", "p999_us"}, std::pair{"least", "min_us"}})
    times.series.push_back(series(name, rows, "size", key));
  return {std::move(times), distribution(rows)};
}

std::vector<PlotPanel> connection_plots(const json& rows) {
  const PlotAxis count{"connections", true, true};
  return {panel_of("time of a connection", count, {"us each"},
                   {series("open", rows, "connections", "open_us_each"),
                    series("close", rows, "connections", "close_us_each")}),
          panel_of("memory of a connection", count, {"KiB each"},
                   {series("sender", rows, "connections", "sender_kib_each"),
                    series("receiver", rows, "connections", "receiver_kib_each")})};
}

std::vector<PlotPanel> stream_plots(const Options& o, const json& rows) {
  std::vector<PlotPanel> panels;
  if (o.test == Test::step)
    panels.push_back(panel_of("time of a step", kSize, {"us", true},
                              {series("median", rows, "size", "median_us_per_step"),
                               series("p99", rows, "size", "p99_us_per_step")}));
  panels.push_back(panel_of("bandwidth", kSize, {"GB/s"},
                            {series("median", rows, "size", "median_gbytes_per_s"),
                             series("slowest hundredth", rows, "size", "p99_slowest_gbytes_per_s"),
                             series("memcpy, one thread", rows, "size", "memcpy_gbytes_per_s")}));
  panels.push_back(
      panel_of("message rate", kSize, {"million messages/s"},
               {series("median", rows, "size", "median_mmessages_per_s"),
                series("slowest hundredth", rows, "size", "p99_slowest_mmessages_per_s")}));
  return panels;
}

std::vector<PlotPanel> solo_plots(const json& rows) {
  return {panel_of("both ends in one thread", kSize, {"messages/s"},
                   {series("median", rows, "size", "median_messages_per_s"),
                    series("slowest hundredth", rows, "size", "p99_slowest_messages_per_s"),
                    series("best", rows, "size", "best_messages_per_s")})};
}

}  // namespace

std::vector<std::string> plot_heading(const Options& o, const json& plugin) {
  const Circumstances c = circumstances();
  std::vector<std::string> lines{std::string("net_perf ") + test_name(o.test) + ", loop '" +
                                 loop_name(o.loop) + "'"};
  if (!plugin.empty())
    lines.push_back(plugin["path"].get<std::string>() + " (" + plugin["name"].get<std::string>() +
                    "), device " + plugin["device"]["name"].get<std::string>());
  lines.push_back("Twinpath " + c.version + " (" + c.commit + "), " + c.time + ", " + c.host +
                  ": " + std::to_string(c.cores) + " cores of " + c.cpu);
  return lines;
}

std::vector<PlotPanel> plots_of(const Options& o, const json& rows) {
  switch (o.test) {
    case Test::latency:
      return latency_plots(rows);
    case Test::conns:
      return connection_plots(rows);
    case Test::solo:
    case Test::callgrind:
      return solo_plots(rows);
    default:
      return stream_plots(o, rows);
  }
}

std::vector<PlotPanel> comparison_plots(const Options& o, const json& rows) {
  const PlotAxis x = o.test == Test::conns ? PlotAxis{"connections", true, true} : kSize;
  const char* by = o.test == Test::conns ? "connections" : "size";
  PlotPanel ratios{"ratio: above 1 this plugin is the better one", x, {"ratio", true}, {}, 1.0};
  std::vector<PlotPanel> panels;
  const auto point = [&](const json& row, const char* side) {
    const json& s = row[side];
    return PlotPoint{row[by].get<double>(), s["median"].get<double>(), s["least"].get<double>(),
                     s["largest"].get<double>()};
  };
  for (const json& r : rows) {
    const auto title = r["title"].get<std::string>();
    auto panel = std::find_if(panels.begin(), panels.end(),
                              [&](const PlotPanel& p) { return p.title == title; });
    if (panel == panels.end()) {
      // Rates begin at 0; times span too much for that.
      const bool times = title.find("us") != std::string::npos;
      panels.push_back(panel_of(title.c_str(), x, {title, times}, {{"this", {}}, {"other", {}}}));
      panel = panels.end() - 1;
      ratios.series.push_back({title, {}});
    }
    panel->series[0].points.push_back(point(r, "this"));
    panel->series[1].points.push_back(point(r, "other"));
    ratios.series[static_cast<std::size_t>(panel - panels.begin())].points.push_back(
        point(r, "ratio"));
  }
  panels.insert(panels.begin(), std::move(ratios));
  return panels;
}

}  // namespace twinpath::tools
