#pragma once
// The table, line by line as results come, or the JSON object at the end.  Knows nothing of CUDA.
//
// Threads: one at a time.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/histogram.h"
#include "tools/common/plot.h"
#include "tools/common/progress_bar.h"
#include "tools/common/statistics.h"
#include "tools/common/table.h"
#include "tools/gda_perf/options.h"

namespace twinpath::gda_perf {

struct Row {
  std::string test;
  std::string variant;  // "" where a test has only one
  std::size_t bytes = 0;
  int blocks = 1;
  int contexts = 1;            // that these blocks used
  std::uint64_t messages = 0;  // timed, of one repetition, all senders
  std::optional<tools::Statistics> us;
  tools::Histogram times_ns;  // what `us` sums up; empty where there is none
  std::optional<double> messages_per_s;
  std::optional<tools::Statistics> gb_per_s;
  std::uint64_t wrong = 0;  // 8-byte words, stamps and surplus signals
  double cpu_s = 0, wall_s = 0;
};

class Report {
 public:
  explicit Report(const Options& options);  // throws ToolError when a file cannot be written
  void fact(const std::string& name, const nlohmann::json& value);  // a key of its own, a "# " line
  void row(const Row& row);
  void progress(const std::string& what);
  // Prints what is left; true when nothing was wrong.  Throws as above.
  bool finish();
  nlohmann::json document() const;
  std::vector<tools::PlotPanel> plots() const;

 private:
  bool to_stdout() const { return options_.json && options_.json_file.empty(); }

  Options options_;
  tools::Table table_;
  tools::ProgressBar bar_;
  std::size_t done_ = 0;
  std::uint64_t wrong_ = 0;
  nlohmann::json facts_, results_;
};

}  // namespace twinpath::gda_perf
