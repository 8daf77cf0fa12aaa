#include "tools/coll_perf/report.h"

#include <cstdio>

#include "tools/coll_perf/error.h"
#include "tools/common/circumstances.h"

namespace twinpath::coll {
namespace {

double gb_per_s(std::size_t bytes, double time_us) {
  return time_us > 0 ? static_cast<double>(bytes) / time_us / 1e3 : 0;
}

std::string time_text(double us) {
  return strf(us < 100 ? "%.2f" : us < 10000 ? "%.1f" : "%.0f", us);
}

void print_measured(const Row& row, const Measured& m) {
  const double alg = gb_per_s(row.plan.bytes, m.time_us);
  std::printf("  %8s %7.2f %7.2f %6s", time_text(m.time_us).c_str(), alg, alg * row.plan.bus_factor,
              row.checked ? strf("%llu", static_cast<unsigned long long>(m.wrong)).c_str() : "N/A");
}

nlohmann::json to_json(const Row& row, const Measured& m) {
  const double alg = gb_per_s(row.plan.bytes, m.time_us);
  nlohmann::json out = {
      {"time_us", m.time_us}, {"algbw_gb_s", alg}, {"busbw_gb_s", alg * row.plan.bus_factor}};
  out["wrong"] = row.checked ? nlohmann::json(m.wrong) : nlohmann::json(nullptr);
  return out;
}

}  // namespace

Report::Report(bool live, const Options& options)
    : live_(live),
      json_(options.json),
      bar_(live && !options.json),
      plot_(options.plot),
      notes_(nlohmann::json::array()),
      results_(nlohmann::json::array()) {
  options_ = {{"iterations", options.iterations}, {"warmup", options.warmup},
              {"checks", options.checks},         {"cpu", options.cpu_ranks},
              {"threads", options.threads},       {"via_plugin", options.via_plugin},
              {"plugin", options.plugin},         {"nccl", options.nccl},
              {"register", options.registered},   {"graph", options.graph}};
}

void Report::note(const std::string& text) {
  if (!live_) return;
  notes_.push_back(text);
  if (!json_) {
    bar_.clear();
    std::printf("# %s\n", text.c_str());
    std::fflush(stdout);
  }
}

void Report::begin_table(const std::string& title) {
  if (!live_ || json_) return;
  bar_.clear();
  std::printf("#\n# %s\n", title.c_str());
  std::printf("#%11s  %12s  %8s  %6s  %5s  %33s  %33s\n", "", "", "", "", "",
              "out-of-place          ", "in-place            ");
  std::printf("#%11s  %12s  %8s  %6s  %5s  %8s %7s %7s %6s  %8s %7s %7s %6s\n", "size", "count",
              "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
              "#wrong");
  std::printf("#%11s  %12s  %8s  %6s  %5s  %8s %7s %7s %6s  %8s %7s %7s\n", "(B)", "(elements)", "",
              "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
  std::fflush(stdout);
}

void Report::row(const Row& row) {
  if (!live_) return;
  for (const Measured* m : {&row.out_of_place, row.in_place ? &*row.in_place : nullptr}) {
    if (m == nullptr) continue;
    wrong_ += m->wrong;
    ++figures_;
    bus_sum_ += gb_per_s(row.plan.bytes, m->time_us) * row.plan.bus_factor;
    checked_ = checked_ || row.checked;
  }
  if (!plot_.empty()) keep_for_plot(row);
  const char* op = row.plan.reduces ? op_name(row.op) : "none";
  if (json_) {
    results_.push_back({{"what", row.what},
                        {"bytes", row.plan.bytes},
                        {"count", row.plan.count},
                        {"type", type_info(row.type).name},
                        {"redop", op},
                        {"root", row.plan.root},
                        {"out_of_place", to_json(row, row.out_of_place)}});
    results_.back()["in_place"] = row.in_place ? to_json(row, *row.in_place) : nlohmann::json();
    return;
  }
  bar_.clear();
  std::printf("%12zu  %12zu  %8s  %6s  %5d", row.plan.bytes, row.plan.count,
              type_info(row.type).name, op, row.plan.root);
  print_measured(row, row.out_of_place);
  if (row.in_place) {
    print_measured(row, *row.in_place);
  } else {
    std::printf("  %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Rows come in order of size, those of a kind one after the other.
void Report::keep_for_plot(const Row& row) {
  const std::string name = row.what + " " + type_info(row.type).name;
  if (times_.empty() || times_.back().name != name) {
    times_.push_back({name, {}});
    bandwidths_.push_back({name, {}});
  }
  const auto bytes = static_cast<double>(row.plan.bytes);
  const double us = row.out_of_place.time_us;
  times_.back().points.push_back({bytes, us});
  bandwidths_.back().points.push_back({bytes, gb_per_s(row.plan.bytes, us) * row.plan.bus_factor});
}

void Report::draw() const {
  std::vector<std::string> heading{"coll_perf, out of place"};
  for (const nlohmann::json& note : notes_) heading.push_back(note.get<std::string>());
  const tools::Circumstances c = tools::circumstances();
  heading.push_back(c.time + ", " + c.host + ": " + std::to_string(c.cores) + " cores of " + c.cpu);
  // Axes with names: those made within the list g++ 12 at -O3 takes for uninitialised.
  const tools::PlotAxis size{"bytes", true, true}, time{"us", true}, rate{"GB/s"};
  tools::write_plots(plot_, heading,
                     {{"time", size, time, times_}, {"bus bandwidth", size, rate, bandwidths_}});
}

void Report::verdict(const std::string& scenario, bool passed, const std::string& detail) {
  scenario_failed_ = scenario_failed_ || !passed;
  if (!live_) return;
  bar_.clear();
  if (json_) {
    results_.push_back({{"scenario", scenario}, {"passed", passed}, {"detail", detail}});
  } else {
    std::printf("%s %s: %s\n", passed ? "PASS" : "FAIL", scenario.c_str(), detail.c_str());
    std::fflush(stdout);
  }
}

bool Report::finish() {
  if (!live_) return !scenario_failed_ && wrong_ == 0;
  bar_.clear();
  const double average = figures_ > 0 ? bus_sum_ / static_cast<double>(figures_) : 0;
  if (json_) {
    nlohmann::json out = tools::json_envelope("coll_perf", options_, results_, kSchema);
    out["notes"] = notes_;
    out["wrong"] = wrong_;
    out["avg_busbw_gb_s"] = average;
    std::printf("%s\n", out.dump(2).c_str());
  } else if (figures_ > 0) {
    if (checked_) {
      std::printf("# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong_),
                  wrong_ == 0 ? "OK" : "FAILED");
    } else {
      std::printf("# Out of bounds values : not checked\n");
    }
    std::printf("# Avg bus bandwidth    : %g\n#\n", average);
  }
  std::fflush(stdout);
  if (!plot_.empty() && !times_.empty()) draw();
  return !scenario_failed_ && wrong_ == 0;
}

}  // namespace twinpath::coll
