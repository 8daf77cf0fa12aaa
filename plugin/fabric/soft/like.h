#pragma once
// Whose adapter an open device is like, for those who know of the soft HCA only that.
#include "plugin/fabric/soft/personality.h"

namespace twinpath {
struct Verbs;
}

namespace twinpath::soft {

const Personality& personality_of(ibv_context* context);

// RoCE version of a GID, which has no sysfs; 0: none.  2 with a table of somebody else's.
int gid_version(const Verbs& table, ibv_context* context, int index);

}  // namespace twinpath::soft
