#pragma once
// One set of processes that runs a list of cases in order, until the end or the first trouble.
//
// Threads: one.
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/base/owned.h"
#include "test/gpu/behind/options.h"
#include "test/gpu/behind/report.h"

namespace twinpath::behind {

// Starts this program (or options.child) with these arguments; its lines go to `report_fd`.
// Its own process group; killed when this process ends.  Throws tools::Failure.
pid_t start_child(const Options& options, const std::vector<std::string>& arguments, int report_fd);

class Batch {
 public:
  // `gpus` ranks.
  Batch(const Options& options, Layout layout, std::vector<Case> cases, int gpus);
  ~Batch();  // kills what still runs
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Until all cases ended or one went wrong; then all processes are gone.  Results in the order of
  // the cases: those that ended, and the one that did not.
  void run(Report& report);
  // How many cases have a result.
  std::size_t finished() const { return done_; }
  // Not empty: the processes did not get as far as the first case, and why.
  const std::string& setup_trouble() const { return setup_trouble_; }

 private:
  void start();
  void follow(Report& report);
  bool read_some(int timeout_ms);  // false: nothing more will come
  void take(const nlohmann::json& line);
  void count_finished(Report& report);
  void end_children(bool at_once);
  std::string trouble() const;

  const Options& options_;
  const Layout layout_;
  const std::vector<Case> cases_;
  const int gpus_;
  std::vector<pid_t> children_;
  UniqueFd lines_;
  std::string unread_;
  std::string id_folder_;                                     // of the file with NCCL's id; ours
  std::map<std::string, std::vector<nlohmann::json>> ended_;  // by case: what ranks told
  std::size_t done_ = 0;
  int ready_ = 0;              // ranks
  std::int64_t since_ns_ = 0;  // when the present case began, or the start
  std::int64_t trouble_ns_ = 0;
  bool failed_ = false, stuck_ = false;
  std::vector<nlohmann::json> troubles_;
  std::string deaths_;
  std::string setup_trouble_;
};

}  // namespace twinpath::behind
