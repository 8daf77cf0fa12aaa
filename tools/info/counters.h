#pragma once
// twinpath-info --counters: what the processes of this host have counted since they began.
#include <string>

#include "tools/counters/summary.h"

namespace twinpath::tools {

// Of all processes that may be read; `notes` go to standard error.
Summary look_at_counters(const std::string& sysfs);
void print_counters(const Summary& summary);

}  // namespace twinpath::tools
