// The tables of net_perf, one for each kind of test.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/common/table.h"
#include "tools/common/units.h"
#include "tools/net_perf/report.h"

namespace twinpath::tools {
namespace {

using nlohmann::json;

std::string cell(const json& r, const char* key, int digits) {
  return r.contains(key) ? fixed(r[key].get<double>(), digits) : std::string("-");
}

std::string size_cell(const json& r) { return format_bytes(r["size"].get<std::size_t>()); }

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

// Rows are printed as they come: columns are as wide as their widest figure may well be.
Table table_of(const Options& options) {
  switch (options.test) {
    case Test::latency:
      return Table({{"size", "bytes", 8},
                    {"median", "us", 9},
                    {"p99", "us", 9},
                    {"p99.9", "us", 9},
                    {"min", "us", 9},
                    {"max", "us", 9},
                    {"CPU/message", "us"},
                    {"samples", "", 9},
                    {"wrong"}});
    case Test::conns:
      return Table({{"connections"},
                    {"open", "ms", 8},
                    {"open each", "us", 9},
                    {"close each", "us"},
                    {"sender", "KiB each"},
                    {"receiver", "KiB each"},
                    {"wrong"}});
    case Test::step:
      return Table({{"size", "bytes", 8},
                    {"connections"},
                    {"window"},
                    {"median", "us/step", 8},
                    {"p99", "us/step", 8},
                    {"min", "us/step", 8},
                    {"median", "GB/s", 8},
                    {"CPU/step", "us"},
                    {"memcpy", "GB/s", 8},
                    {"ratio"},
                    {"wrong"}});
    default:
      return Table({{"size", "bytes", 8},
                    {"window"},
                    {"median", "GB/s", 8},
                    {"p99 slow", "GB/s"},
                    {"median", "Mmsg/s", 8},
                    {"p99 slow", "Mmsg/s"},
                    {"CPU/message", "us"},
                    {"memcpy", "GB/s", 8},
                    {"ratio"},
                    {"wrong"}});
  }
}

std::vector<std::string> cells_of(const Options& options, const json& r) {
  const std::string wrong = options.verify ? cell(r, "wrong", 0) : std::string("-");
  switch (options.test) {
    case Test::latency:
      return {size_cell(r),
              cell(r, "median_us", 2),
              cell(r, "p99_us", 2),
              cell(r, "p999_us", 2),
              cell(r, "min_us", 2),
              cell(r, "max_us", 2),
              cell(r, "cpu_us_per_message", 2),
              cell(r, "samples", 0),
              wrong};
    case Test::conns:
      return {cell(r, "connections", 0),
              cell(r, "open_ms", 2),
              cell(r, "open_us_each", 1),
              cell(r, "close_us_each", 1),
              cell(r, "sender_kib_each", 1),
              cell(r, "receiver_kib_each", 1),
              wrong};
    case Test::step:
      return {size_cell(r),
              cell(r, "connections", 0),
              cell(r, "window", 0),
              cell(r, "median_us_per_step", 2),
              cell(r, "p99_us_per_step", 2),
              cell(r, "min_us_per_step", 2),
              cell(r, "median_gbytes_per_s", 3),
              cell(r, "cpu_us_per_message", 2),
              cell(r, "memcpy_gbytes_per_s", 2),
              cell(r, "ratio_to_memcpy", 2),
              wrong};
    default:
      return {size_cell(r),
              cell(r, "window", 0),
              cell(r, "median_gbytes_per_s", 3),
              cell(r, "p99_slowest_gbytes_per_s", 3),
              cell(r, "median_mmessages_per_s", 4),
              cell(r, "p99_slowest_mmessages_per_s", 4),
              cell(r, "cpu_us_per_message", 2),
              cell(r, "memcpy_gbytes_per_s", 2),
              cell(r, "ratio_to_memcpy", 2),
              wrong};
  }
}

}  // namespace twinpath::tools
