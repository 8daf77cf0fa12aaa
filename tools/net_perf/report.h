#pragma once
// Puts the workers' raw figures together and prints them as a table, as JSON and as a picture.
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/common/progress_bar.h"
#include "tools/common/table.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

class Report {
 public:
  enum class Rows { as_they_come, at_the_end };
  Report(const Options& options, ProgressBar& bar, Rows rows)
      : options_(options), bar_(bar), live_(rows == Rows::as_they_come) {}
  // Of a part of the run, which begins at `begin` (0..1) and takes `share` of it.
  Report(const Options& options, ProgressBar& bar, double begin, double share, std::string part)
      : options_(options), bar_(bar), begin_(begin), share_(share), part_(std::move(part)) {}
  // Of each worker of a job; not called when all are on this one.
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  void add(int rank, const nlohmann::json& result);
  void progress(double fraction, const std::string& phase) {
    bar_.update(begin_ + share_ * fraction, part_ + phase);
  }
  // Prints all that is not printed yet; `failure` empty when the run went well.
  void print(const std::string& failure);
  // The signal that ended the run early; 0: none.
  void set_interrupted(int signal) { interrupted_ = signal; }
  int interrupted() const { return interrupted_; }
  bool wrong_data() const { return wrong_ != 0; }

  // One for each size, or number of connections, that all pairs have finished.
  nlohmann::json rows() const;
  // As the first worker found it; empty when it came to none.
  const nlohmann::json& plugin() const { return plugin_; }
  const std::vector<std::string>& hosts() const { return hosts_; }
  const std::vector<std::string>& wrong_details() const { return wrong_details_; }

 private:
  void print_new_rows();
  void print_heading() const;
  void print_document(const nlohmann::json& rows, const std::string& failure) const;
  nlohmann::json row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json latency_row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json stream_row(const std::vector<nlohmann::json>& pairs) const;
  nlohmann::json connections_row(const std::vector<nlohmann::json>& pairs) const;

  const Options& options_;
  std::vector<std::string> hosts_;
  ProgressBar& bar_;
  double begin_ = 0, share_ = 1;
  std::string part_;
  bool live_ = false;
  int interrupted_ = 0;
  std::size_t printed_ = 0;  // rows
  nlohmann::json plugin_ = nlohmann::json::object();
  std::map<int, std::vector<nlohmann::json>> results_;  // by rank of the pair's first worker
  std::vector<std::string> wrong_details_;
  std::uint64_t wrong_ = 0;
};

// The table of a run, as text (report_table.cc): its heading, and a row when it is known.
Table table_of(const Options& options);
std::vector<std::string> cells_of(const Options& options, const nlohmann::json& row);
// --histogram, below the table.
void print_histogram(const nlohmann::json& row);
// "# plugin ...", and what its device is, in lines.
std::string describe_plugin(const char* role, const nlohmann::json& plugin);
// "# workers on ...", where they are on several hosts.
std::string describe_hosts(const std::vector<std::string>& hosts);

}  // namespace twinpath::tools
