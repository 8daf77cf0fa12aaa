#pragma once
// Where NCCL is told that a port sits.  Its topology takes devices of one PCI path for the ports of
// one adapter, which it merges by default, so the functions of one card are shown at its first (as
// NCCL's own transport does), and virtual functions at their physical one's (NCCL_IB_MERGE_VFS).  A
// port that moves GPU memory by a data-direct function is shown there: NCCL looks for what is near
// to GPUs.  Our own decisions go by the port's own path.  Pure.
#include <cstddef>
#include <span>
#include <string>

#include "plugin/fabric/fabric.h"

namespace twinpath {

struct ShownPlace {
  std::string pci_path;
  int port = 1;  // unlike those of other devices at the same path
};

// Of one port of all.
ShownPlace shown_place(std::span<const Port> ports, std::size_t index, bool merge_vfs);

}  // namespace twinpath
