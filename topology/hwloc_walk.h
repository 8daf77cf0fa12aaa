#pragma once
// From a loaded hwloc topology to a Machine (internal to the hwloc reader).
#include "topology/hwloc_library.h"
#include "topology/machine.h"

namespace twinpath {

Machine walk_hwloc(const HwlocLibrary& library, hwloc_topology_t topology);

}  // namespace twinpath
