#pragma once
// The part of /sys and /proc that a replay needs, as archive entries.
#include <string>
#include <vector>

#include "tools/topo/tar.h"
#include "topology/model/machine.h"

namespace twinpath::tools::topo {

// `root` is the folder above sys and proc that `machine` was read from.  Serial numbers, UUIDs,
// MAC addresses and gateways are never in it; GUIDs, GIDs and the host's name are hashed with a
// salt of this run unless `raw`.  Throws Failure.
std::vector<TarEntry> dump_entries(const Machine& machine, const std::string& root, bool raw);

}  // namespace twinpath::tools::topo
