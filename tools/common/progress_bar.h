#pragma once
// One line on stderr that says how far a run is.  Silent unless stderr is a terminal, so that
// logs and pipes stay clean.
#include <cstdint>
#include <string>

namespace twinpath::tools {

class ProgressBar {
 public:
  // `enabled` false: never prints (for --json and --quiet).
  explicit ProgressBar(bool enabled = true);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // Redraws at most ten times a second; `fraction` in 0..1.
  void update(double fraction, const std::string& what);
  // Removes the line; call before other output.
  void clear();

 private:
  bool enabled_;
  bool drawn_ = false;
  std::int64_t next_ns_ = 0;
};

}  // namespace twinpath::tools
