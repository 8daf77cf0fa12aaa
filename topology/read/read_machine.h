#pragma once
// One call from "where from" to a finished Machine.
#include <optional>
#include <string>

#include "topology/model/machine.h"

namespace twinpath {

struct MachineInput {
  // Empty: this machine.  Otherwise a file (hwloc XML, NCCL XML) or a folder (root above sys and
  // proc); which of them is found out by looking.
  std::string path;
  // Look through libhwloc as well and compare, where it is installed: this machine only.
  bool use_hwloc = true;
  // A topology file of NCCL laid over what was read (NCCL_TOPO_FILE); empty: none.
  std::string placement;
  // Host in a file that holds several.
  int host = 0;
};

// nullopt and `why` when the input cannot be read.  A placement file that cannot be read is a
// warning (PLACEMENT_UNREADABLE): the machine is still there.
std::optional<Machine> read_machine(const MachineInput& input, std::string& why);

}  // namespace twinpath
