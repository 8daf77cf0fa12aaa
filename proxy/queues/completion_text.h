#pragma once
// What a failed completion probably means and what to do about it.  A table, so that no hint can
// be given for the wrong status.
#include "plugin/fabric/verbs.h"

namespace twinpath {

// Never null.
const char* completion_hint(ibv_wc_status status);
const char* work_name(int kind);  // of a WrKind

// What to do when a queue, a completion queue or a registration could not be made for that errno
// (0: none was given); begins with "; ", or is empty.
const char* object_remedy(int error);

}  // namespace twinpath
