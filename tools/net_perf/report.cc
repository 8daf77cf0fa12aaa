#include "tools/net_perf/report.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tools/common/circumstances.h"
#include "tools/common/histogram.h"
#include "tools/common/plot.h"
#include "tools/common/statistics.h"
#include "tools/net_perf/plots.h"

namespace twinpath::tools {
namespace {

using nlohmann::json;

double number(const json& j, const char* key) { return j.at(key).get<double>(); }

double sum(const std::vector<json>& pairs, const char* key) {
  double total = 0;
  for (const json& p : pairs) total += number(p, key);
  return total;
}

}  // namespace

void Report::add(int rank, const json& result) {
  if (result.contains("plugin")) {
    plugin_ = result["plugin"];
  } else if (result.contains("wrong_detail")) {
    wrong_details_.push_back("worker " + std::to_string(rank) + ": " +
                             result["wrong_detail"].get<std::string>());
  } else {
    results_[rank].push_back(result);
    wrong_ += result.at("wrong").get<std::uint64_t>();
    if (live_) print_new_rows();
  }
}

json Report::latency_row(const std::vector<json>& pairs) const {
  constexpr double kOneWay = 2000;  // round trips in ns to us one way
  Histogram times;
  for (const json& p : pairs) times.merge(Histogram::from_json(p.at("times")));
  return {{"size", pairs[0].at("size")},
          {"samples", times.count()},
          {"median_us", times.quantile(0.5) / kOneWay},
          {"p99_us", times.quantile(0.99) / kOneWay},
          {"p999_us", times.quantile(0.999) / kOneWay},
          {"min_us", static_cast<double>(times.min()) / kOneWay},
          {"max_us", static_cast<double>(times.max()) / kOneWay},
          {"mean_us", times.mean() / kOneWay},
          {"histogram_us", buckets_json(times, kOneWay)},
          {"cpu_us_per_message", sum(pairs, "cpu") / sum(pairs, "messages") / 1000}};
}

json Report::stream_row(const std::vector<json>& pairs) const {
  std::vector<double> seconds;
  double cpu = 0;
  const std::size_t reps = pairs[0].at("reps").size();
  for (std::size_t i = 0; i < reps; ++i) {
    double begin = std::numeric_limits<double>::max(), end = 0;
    for (const json& p : pairs) {
      const json& rep = p.at("reps")[i];
      begin = std::min(begin, rep[0].get<double>());
      end = std::max(end, rep[1].get<double>());
      // Threads share one process; each pair has counted all of it.
      const double its = rep[2].get<double>();
      if (!options_.threads || &p == &pairs[0]) cpu += its;
    }
    seconds.push_back((end - begin) / 1e9);
  }
  const Statistics s = summarize(std::move(seconds));
  const double bytes = sum(pairs, "bytes"), messages = sum(pairs, "messages");
  const double copy = number(pairs[0], "memcpy") / 1e9, rate = bytes / s.median / 1e9;
  json row{{"size", pairs[0].at("size")},
           {"window", pairs[0].at("window")},
           {"messages", messages},
           {"median_gbytes_per_s", rate},
           {"p99_slowest_gbytes_per_s", bytes / s.p99 / 1e9},
           {"best_gbytes_per_s", bytes / s.min / 1e9},
           {"median_mmessages_per_s", messages / s.median / 1e6},
           {"p99_slowest_mmessages_per_s", messages / s.p99 / 1e6},
           {"cpu_us_per_message", cpu / (messages * static_cast<double>(reps)) / 1000}};
  if (options_.test == Test::step) {
    // Of each connection; the pairs and their connections work at the same time.
    const double us = 1e6 / number(pairs[0], "steps");
    row["connections"] = options_.connections[0];
    row["median_us_per_step"] = s.median * us;
    row["p99_us_per_step"] = s.p99 * us;
    row["min_us_per_step"] = s.min * us;
  }
  if (copy > 0) {
    row["memcpy_gbytes_per_s"] = copy;
    row["ratio_to_memcpy"] = rate / copy;
  }
  return row;
}

json Report::connections_row(const std::vector<json>& pairs) const {
  const double n = sum(pairs, "connections");
  double open = 0, close = 0;
  for (const json& p : pairs) {
    open = std::max(open, number(p, "open_ns"));
    close = std::max(close, number(p, "close_ns"));
  }
  return {{"connections", n},
          {"open_ms", open / 1e6},
          {"open_us_each", open / n / 1000},
          {"close_us_each", close / n / 1000},
          {"sender_kib_each", sum(pairs, "send_bytes") / n / 1024},
          {"receiver_kib_each", sum(pairs, "recv_bytes") / n / 1024}};
}

json Report::row(const std::vector<json>& pairs) const {
  json r = options_.test == Test::latency ? latency_row(pairs)
           : options_.test == Test::conns ? connections_row(pairs)
                                          : stream_row(pairs);
  r["wrong"] = sum(pairs, "wrong");
  return r;
}

json Report::rows() const {
  json rows = json::array();
  const bool all_pairs = results_.size() == static_cast<std::size_t>(options_.workers) / 2;
  std::size_t count = !all_pairs ? 0 : std::numeric_limits<std::size_t>::max();
  for (const auto& [rank, list] : results_) count = std::min(count, list.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<json> pairs;
    for (const auto& [rank, list] : results_) pairs.push_back(list[i]);
    rows.push_back(row(pairs));
  }
  return rows;
}

// With the first row comes what stands above the table.
void Report::print_new_rows() {
  const json rows = this->rows();
  if (printed_ == rows.size()) return;
  bar_.clear();
  const Table table = table_of(options_);
  if (printed_ == 0) {
    print_heading();
    table.header(stdout);
  }
  for (; printed_ < rows.size(); ++printed_) table.row(stdout, cells_of(options_, rows[printed_]));
}

void Report::print_heading() const {
  std::printf("%s%s# %s, %d %s, loop '%s', %d repetitions\n%s", describe(circumstances()).c_str(),
              describe_plugin("plugin", plugin_).c_str(), test_name(options_.test),
              options_.workers, options_.threads ? "threads" : "processes",
              loop_name(options_.loop), options_.repeats, describe_hosts(hosts_).c_str());
}

void Report::print_document(const json& rows, const std::string& failure) const {
  json all = json_envelope("net_perf", options_json(options_), rows, kSchema);
  all["plugin"] = plugin_;
  if (!hosts_.empty()) all["hosts"] = hosts_;
  all["failure"] = failure;
  all["wrong_details"] = wrong_details_;
  std::printf("%s\n", all.dump(2).c_str());
}

void Report::print(const std::string& failure) {
  bar_.clear();
  const json rows = this->rows();
  if (options_.json) {
    print_document(rows, failure);
  } else if (rows.empty()) {
    print_heading();
  } else if (options_.histogram) {
    for (const json& r : rows) print_histogram(r);
  }
  std::fflush(stdout);
  for (const std::string& detail : wrong_details_)
    std::fprintf(stderr, "net_perf: wrong data, %s\n", detail.c_str());
  if (!failure.empty())
    std::fprintf(stderr, "net_perf: %s%s", interrupted_ != 0 ? "" : "failed\n", failure.c_str());
  if (!options_.plot.empty() && !rows.empty())
    write_plots(options_.plot, plot_heading(options_, plugin_), plots_of(options_, rows));
}

}  // namespace twinpath::tools
