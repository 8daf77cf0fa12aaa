#pragma once
// Puts the workers' raw figures together and prints them as a table or as JSON.
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/common/progress_bar.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

class Report {
 public:
  // `hosts`: of each worker of a job; empty when all are on this one.
  explicit Report(const Options& options, std::vector<std::string> hosts = {})
      : options_(options), hosts_(std::move(hosts)), bar_(!options.json) {}
  void add(int rank, const nlohmann::json& result);
  void progress(double fraction, const std::string& phase) { bar_.update(fraction, phase); }
  // Prints everything; `failure` empty when the run went well.
  void print(const std::string& failure);
  bool wrong_data() const { return wrong_ != 0; }

 private:
  nlohmann::json row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json latency_row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json stream_row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json connections_row(const std::vector<nlohmann::json>& pairs) const;
  void print_table(const nlohmann::json& rows) const;

  const Options& options_;
  const std::vector<std::string> hosts_;
  ProgressBar bar_;
  nlohmann::json plugin_ = nlohmann::json::object();
  std::map<int, std::vector<nlohmann::json>> results_;  // by rank of the pair's first worker
  std::vector<std::string> wrong_details_;
  std::uint64_t wrong_ = 0;
};

}  // namespace twinpath::tools
