#pragma once
// The table and the JSON lines.
#include <cstdint>
#include <string>
#include <vector>

#include "test/gpu/behind/options.h"
#include "tools/common/statistics.h"

namespace twinpath::behind {

enum class Verdict { ok, wrong, hung, failed, skipped, not_run };
const char* name_of(Verdict verdict);
// Whether the program may end with 0.
bool is_good(Verdict verdict);

struct Result {
  Layout layout = Layout::threads;
  Case which;
  Verdict verdict = Verdict::not_run;
  std::uint64_t wrong = 0;
  std::vector<double> call_us;  // of all ranks and rounds
  double seconds = 0;
  std::string detail;  // where it hung, what failed, why it was left out
};

class Report {
 public:
  Report(const Options& options, int gpus);
  void add(const Result& result);  // prints its JSON line, or its line of the table
  // Prints the table where that was not done line by line, and the sum of all.
  void finish();
  bool good() const { return bad_ == 0; }

 private:
  const Options& options_;
  int gpus_;
  int bad_ = 0;
  std::vector<Result> results_;
};

}  // namespace twinpath::behind
