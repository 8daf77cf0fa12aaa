#pragma once
// The I/O part of hwloc's tree as plain values, from the library or from a file, and the one walk
// that enters it into a Machine (internal to the hwloc readers).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/model/machine.h"

namespace twinpath {

struct IoObject {
  enum class Kind : std::uint8_t { host_bridge, bridge, device, openfabrics, network, other };
  Kind kind = Kind::other;
  // Bridges and devices.  A host bridge has domain and root bus only.
  BusId bus;
  PciId id;
  double link_gbytes = 0;  // 0: not told
  std::uint8_t secondary_bus = 0;
  std::uint8_t subordinate_bus = 0;
  std::string name;  // of an adapter or interface: "mlx5_0", "hsi0"
  std::vector<std::pair<std::string, std::string>> infos;
  std::vector<IoObject> children;

  // The value of an info; empty when there is none.
  std::string info(std::string_view key) const;
};

// What hangs at one place of the CPU part of the tree.
struct IoPlace {
  std::optional<int> numa;  // its only CPU node
  std::vector<IoObject> objects;
};

// Enters GPUs, adapters, data-direct functions and the bridges above them.
void enter_io(Machine& machine, const std::vector<IoPlace>& places);

}  // namespace twinpath
