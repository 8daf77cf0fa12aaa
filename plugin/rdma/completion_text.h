#pragma once
// What a failed completion probably means and what to do about it.  A table, so that no hint can
// be given for the wrong status.
#include <string>

#include "plugin/fabric/verbs.h"

namespace twinpath {

// Never null.
const char* completion_hint(ibv_wc_status status);

// Of a whole completion queue on that device.
std::string failed_completions_text(const std::string& device);

}  // namespace twinpath
