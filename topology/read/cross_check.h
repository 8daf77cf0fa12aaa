#pragma once
// Two readings of one machine compared.  hwloc builds its tree from configuration space and drops
// every bridge when that is unreadable; sysfs paths are always readable.  So where the chains of
// bus ids differ, sysfs is right.
#include "topology/model/machine.h"

namespace twinpath {

// The sysfs reading with what only hwloc knows (names of models, link rates where sysfs had none)
// and a warning HWLOC_BLIND for each kind of disagreement: bridges missing or different, devices
// that only one of them has, NUMA nodes that differ (HWLOC_NUMA).
Machine cross_checked(Machine sysfs, const Machine& hwloc);

}  // namespace twinpath
