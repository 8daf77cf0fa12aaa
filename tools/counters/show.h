#pragma once
// A summary for people and for programs.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/counters/summary.h"

namespace twinpath::tools {

// The first line names the culprit.  At most `most` rows; 0: all.
void print_summary(std::FILE* out, const Summary& summary, std::size_t most);
// {"culprit", "first_line", "seconds", "nics": [...], "gin": [...], "processes": [...], "peers":
// [...]}
nlohmann::json summary_json(const Summary& summary);

}  // namespace twinpath::tools
