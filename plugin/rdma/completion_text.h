#pragma once
// What a failed completion probably means and what to do about it.  A table, so that no hint can
// be given for the wrong status.
#include "plugin/fabric/verbs.h"

namespace twinpath {

// Never null.
const char* completion_hint(ibv_wc_status status);

}  // namespace twinpath
