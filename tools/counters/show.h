#pragma once
// A summary for people and for programs.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/common/screen.h"
#include "tools/counters/summary.h"

namespace twinpath::tools {

// The first line names the culprit.  At most `most` rows; 0: all.  On a screen as many as leave the
// first line in sight, and the columns that matter most.
void print_summary(std::FILE* out, const Summary& summary, std::size_t most,
                   const Screen& screen = {});
// {"culprit", "first_line", "seconds", "nics": [...], "gin": [...], "processes": [...], "peers":
// [...]}
nlohmann::json summary_json(const Summary& summary);
inline constexpr int kTopSchema = 2;  // of documents that have it

}  // namespace twinpath::tools
