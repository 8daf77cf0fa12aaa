#pragma once
// A process with ranks: one that `behind` started, or that somebody started by hand with --rank.
// It tells what happens in lines of JSON on options.report_fd:
//   {"what":"ready","rank":0}
//   {"what":"end","rank":0,"case":"sync@4","wrong":0,"call_us":[...]}   or with "skipped":"why"
//   {"what":"error","rank":0,"case":"sync@4","text":"..."}              "" while setting up
//   {"what":"stuck","rank":0,"case":"sync@4","round":3,"step":"..."}
//   {"what":"done","rank":0}
// After an error or when it is stuck the process ends at once and cleans nothing up: what hangs
// would hang there, too.
#include "test/gpu/behind/options.h"

namespace twinpath::behind {

int run_ranks(const Options& options);

}  // namespace twinpath::behind
