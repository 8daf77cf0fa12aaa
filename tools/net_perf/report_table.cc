// The tables of net_perf, one for each kind of test.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/net_perf/report.h"

namespace twinpath::tools {
namespace {

using nlohmann::json;

// A column, and which figure of a result stands in it.
struct ShownFigure {
  Table::Column column;
  const char* key;
  int digits = 0;
};

const ShownFigure kShownSize{{"size", "bytes", 8}, "size"};
const ShownFigure kShownConnections{{"connections"}, "connections"};
const ShownFigure kShownWindow{{"window"}, "window"};
const ShownFigure kShownGigabytes{{"median", "GB/s", 8}, "median_gbytes_per_s", 3};
const ShownFigure kShownMemcpy{{"memcpy", "GB/s", 8}, "memcpy_gbytes_per_s", 2};
const ShownFigure kShownRatio{{"ratio"}, "ratio_to_memcpy", 2};
const ShownFigure kShownWrong{{"wrong"}, "wrong"};

// Rows are printed as they come: columns are as wide as their widest figure may well be.
std::vector<ShownFigure> shown_figures(Test test) {
  switch (test) {
    case Test::latency:
      return {kShownSize,
              {{"median", "us", 9}, "median_us", 2},
              {{"p99", "us", 9}, "p99_us", 2},
              {{"p99.9", "us", 9}, "p999_us", 2},
              {{"min", "us", 9}, "min_us", 2},
              {{"max", "us", 9}, "max_us", 2},
              {{"CPU/message", "us"}, "cpu_us_per_message", 2},
              {{"samples", "", 9}, "samples"},
              kShownWrong};
    case Test::conns:
      return {kShownConnections,
              {{"open", "ms", 8}, "open_ms", 2},
              {{"open each", "us", 9}, "open_us_each", 1},
              {{"close each", "us"}, "close_us_each", 1},
              {{"sender", "KiB each"}, "sender_kib_each", 1},
              {{"receiver", "KiB each"}, "receiver_kib_each", 1},
              kShownWrong};
    case Test::step:
      return {kShownSize,
              kShownConnections,
              kShownWindow,
              {{"median", "us/step", 8}, "median_us_per_step", 2},
              {{"p99", "us/step", 8}, "p99_us_per_step", 2},
              {{"min", "us/step", 8}, "min_us_per_step", 2},
              kShownGigabytes,
              {{"CPU/step", "us"}, "cpu_us_per_message", 2},
              kShownMemcpy,
              kShownRatio,
              kShownWrong};
    default:
      return {kShownSize,
              kShownWindow,
              kShownGigabytes,
              {{"p99 slow", "GB/s"}, "p99_slowest_gbytes_per_s", 3},
              {{"median", "Mmsg/s", 8}, "median_mmessages_per_s", 4},
              {{"p99 slow", "Mmsg/s"}, "p99_slowest_mmessages_per_s", 4},
              {{"CPU/message", "us"}, "cpu_us_per_message", 2},
              kShownMemcpy,
              kShownRatio,
              kShownWrong};
  }
}

std::string cell(const Options& options, const json& r, const ShownFigure& figure) {
  const std::string_view key = figure.key;
  if (key == kShownSize.key) return format_bytes(r[figure.key].get<std::size_t>());
  if (!r.contains(figure.key) || (key == kShownWrong.key && !options.verify)) return "-";
  return fixed(r[figure.key].get<double>(), figure.digits);
}

}  // namespace

std::string describe_plugin(const char* role, const json& plugin) {
  if (plugin.empty()) return {};
  const auto text = [](const json& j) { return j.get<std::string>(); };
  const json& device = plugin["device"];
  std::string out = "# " + std::string(role) + " " + text(plugin["path"]) + " (" +
                    text(plugin["name"]) + ", net v" + std::to_string(plugin["abi"].get<int>()) +
                    "), device " + text(device["name"]) + "\n";
  if (text(device["pci_path"]).empty())
    out += "# " + text(device["name"]) +
           " has no PCI device behind it: the figures are the cost of software, not of a "
           "network\n";
  return out;
}

std::string describe_hosts(const std::vector<std::string>& hosts) {
  if (hosts.empty()) return {};
  std::string names;
  for (const std::string& host : hosts) names += " " + host;
  return "# workers on" + names + "\n";
}

// A line for each bucket, with a bar.  Bars are logarithmic: the tail is what is looked for.
void print_histogram(const json& row) {
  constexpr double kWidth = 50;
  std::uint64_t most = 1;
  for (const json& b : row["histogram_us"]) most = std::max(most, b[2].get<std::uint64_t>());
  std::printf("\n%s bytes: one-way time, us, and how often (bars are logarithmic)\n",
              format_bytes(row["size"].get<std::size_t>()).c_str());
  for (const json& b : row["histogram_us"]) {
    const auto count = b[2].get<std::uint64_t>();
    const double share =
        std::log2(static_cast<double>(count) + 1) / std::log2(static_cast<double>(most) + 1);
    std::printf("%11.3f .. %-11.3f %9llu %s\n", b[0].get<double>(), b[1].get<double>(),
                static_cast<unsigned long long>(count),
                std::string(static_cast<std::size_t>(std::ceil(kWidth * share)), '#').c_str());
  }
}

Table table_of(const Options& options) {
  std::vector<Table::Column> columns;
  for (const ShownFigure& f : shown_figures(options.test)) columns.push_back(f.column);
  return Table(std::move(columns));
}

std::vector<std::string> cells_of(const Options& options, const json& r) {
  std::vector<std::string> cells;
  for (const ShownFigure& f : shown_figures(options.test)) cells.push_back(cell(options, r, f));
  return cells;
}

}  // namespace twinpath::tools
