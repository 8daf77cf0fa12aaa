#pragma once
// From a loaded hwloc topology to a Machine (internal to the hwloc reader).
#include "topology/model/machine.h"
#include "topology/read/hwloc_library.h"

namespace twinpath {

Machine walk_hwloc(const HwlocLibrary& library, hwloc_topology_t topology);

}  // namespace twinpath
