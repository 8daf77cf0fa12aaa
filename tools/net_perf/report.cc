#include "tools/net_perf/report.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tools/common/circumstances.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
#include "tools/common/units.h"

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
  }
}

json Report::latency_row(const std::vector<json>& pairs) const {
  std::vector<double> us;  // one way
  for (const json& p : pairs)
    for (const json& ns : p.at("samples")) us.push_back(ns.get<double>() / 2000);
  const Summary s = summarize(std::move(us));
  return {{"size", pairs[0].at("size")},
          {"samples", s.count},
          {"median_us", s.median},
          {"p99_us", s.p99},
          {"min_us", s.min},
          {"max_us", s.max},
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
  const Summary s = summarize(std::move(seconds));
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

void Report::print_table(const json& rows) const {
  const auto cell = [](const json& r, const char* key, int digits) {
    return r.contains(key) ? fixed(r[key].get<double>(), digits) : std::string("-");
  };
  const auto wrong = [&](const json& r) {
    return options_.verify ? cell(r, "wrong", 0) : std::string("-");
  };
  if (options_.test == Test::latency) {
    Table t({{"size", "bytes", 8},
             {"median", "us", 9},
             {"p99", "us", 9},
             {"min", "us", 9},
             {"max", "us", 9},
             {"CPU/message", "us"},
             {"samples"},
             {"wrong"}});
    for (const json& r : rows)
      t.add({format_bytes(r["size"].get<std::size_t>()), cell(r, "median_us", 2),
             cell(r, "p99_us", 2), cell(r, "min_us", 2), cell(r, "max_us", 2),
             cell(r, "cpu_us_per_message", 2), cell(r, "samples", 0), wrong(r)});
    return t.print(stdout);
  }
  if (options_.test == Test::conns) {
    Table t({{"connections"},
             {"open", "ms"},
             {"open each", "us"},
             {"close each", "us"},
             {"sender", "KiB each"},
             {"receiver", "KiB each"},
             {"wrong"}});
    for (const json& r : rows)
      t.add({cell(r, "connections", 0), cell(r, "open_ms", 2), cell(r, "open_us_each", 1),
             cell(r, "close_us_each", 1), cell(r, "sender_kib_each", 1),
             cell(r, "receiver_kib_each", 1), wrong(r)});
    return t.print(stdout);
  }
  if (options_.test == Test::step) {
    Table t({{"size", "bytes", 8},
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
    for (const json& r : rows)
      t.add({format_bytes(r["size"].get<std::size_t>()), cell(r, "connections", 0),
             cell(r, "window", 0), cell(r, "median_us_per_step", 2), cell(r, "p99_us_per_step", 2),
             cell(r, "min_us_per_step", 2), cell(r, "median_gbytes_per_s", 3),
             cell(r, "cpu_us_per_message", 2), cell(r, "memcpy_gbytes_per_s", 2),
             cell(r, "ratio_to_memcpy", 2), wrong(r)});
    return t.print(stdout);
  }
  Table t({{"size", "bytes", 8},
           {"window"},
           {"median", "GB/s", 8},
           {"p99 slow", "GB/s"},
           {"median", "Mmsg/s", 8},
           {"p99 slow", "Mmsg/s"},
           {"CPU/message", "us"},
           {"memcpy", "GB/s", 8},
           {"ratio"},
           {"wrong"}});
  for (const json& r : rows)
    t.add({format_bytes(r["size"].get<std::size_t>()), cell(r, "window", 0),
           cell(r, "median_gbytes_per_s", 3), cell(r, "p99_slowest_gbytes_per_s", 3),
           cell(r, "median_mmessages_per_s", 4), cell(r, "p99_slowest_mmessages_per_s", 4),
           cell(r, "cpu_us_per_message", 2), cell(r, "memcpy_gbytes_per_s", 2),
           cell(r, "ratio_to_memcpy", 2), wrong(r)});
  t.print(stdout);
}

void Report::print(const std::string& failure) {
  bar_.clear();
  json rows = json::array();
  std::size_t count = results_.empty() ? 0 : std::numeric_limits<std::size_t>::max();
  for (const auto& [rank, list] : results_) count = std::min(count, list.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<json> pairs;
    for (const auto& [rank, list] : results_) pairs.push_back(list[i]);
    rows.push_back(row(pairs));
  }
  if (options_.json) {
    json all = json_envelope("net_perf", options_json(options_), std::move(rows));
    all["plugin"] = plugin_;
    if (!hosts_.empty()) all["hosts"] = hosts_;
    all["failure"] = failure;
    all["wrong_details"] = wrong_details_;
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s", describe(circumstances()).c_str());
    if (!plugin_.empty()) {
      const json& device = plugin_["device"];
      std::printf("# plugin %s (%s, net v%d), device %s\n",
                  plugin_["path"].get<std::string>().c_str(),
                  plugin_["name"].get<std::string>().c_str(), plugin_["abi"].get<int>(),
                  device["name"].get<std::string>().c_str());
      if (device["pci_path"].get<std::string>().empty())
        std::printf(
            "# %s has no PCI device behind it: the figures are the cost of software, "
            "not of a network\n",
            device["name"].get<std::string>().c_str());
    }
    std::printf("# %s, %d %s, loop '%s', %d repetitions\n", test_name(options_.test),
                options_.workers, options_.threads ? "threads" : "processes",
                loop_name(options_.loop), options_.repeats);
    if (!hosts_.empty()) {
      std::string names;
      for (const std::string& host : hosts_) names += " " + host;
      std::printf("# workers on%s\n", names.c_str());
    }
    if (!rows.empty()) print_table(rows);
  }
  std::fflush(stdout);
  for (const std::string& detail : wrong_details_)
    std::fprintf(stderr, "net_perf: wrong data, %s\n", detail.c_str());
  if (!failure.empty()) std::fprintf(stderr, "net_perf: failed\n%s", failure.c_str());
}

}  // namespace twinpath::tools
