#pragma once
// The table (columns as nccl-tests prints them) or the JSON object.  Only rank 0 has a live one.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/coll_perf/collective.h"
#include "tools/coll_perf/options.h"
#include "tools/common/plot.h"
#include "tools/common/progress_bar.h"

namespace twinpath::coll {

struct Measured {
  double time_us = 0;
  std::uint64_t wrong = 0;
};

struct Row {
  std::string what;  // "all_reduce" or "all_reduce ring"
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  Plan plan;
  Measured out_of_place;
  std::optional<Measured> in_place;
  bool checked = true;
};

class Report {
 public:
  Report(bool live, const Options& options);
  // A "# ..." line of circumstances; in JSON an entry of "notes".
  void note(const std::string& text);
  void begin_table(const std::string& title);
  void row(const Row& row);
  void progress(double fraction, const std::string& what) { bar_.update(fraction, what); }
  // One line per scenario.
  void verdict(const std::string& scenario, bool passed, const std::string& detail);
  // Prints the last lines (table) or everything (JSON), and draws --plot; true when nothing was
  // wrong.
  bool finish();

 private:
  void keep_for_plot(const Row& row);
  void draw() const;

  bool live_;
  bool json_;
  bool scenario_failed_ = false;
  tools::ProgressBar bar_;
  std::uint64_t wrong_ = 0;
  std::uint64_t figures_ = 0;
  double bus_sum_ = 0;
  bool checked_ = false;
  std::string plot_;
  std::vector<tools::PlotSeries> times_, bandwidths_;
  nlohmann::json options_, notes_, results_;
};

}  // namespace twinpath::coll
