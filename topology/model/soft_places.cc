#include "topology/model/soft_places.h"

#include "plugin/fabric/soft_hca.h"
#include "topology/model/place.h"

namespace twinpath {

bool place_soft_hcas(Machine& machine, const Config& config, std::string& why) {
  const SoftHca* const soft = open_soft_hca(why);
  if (soft == nullptr) return false;
  std::vector<soft::Adapter> adapters;
  if (!soft->adapters(config.soft_hcas, adapters, why)) {
    why = "TWINPATH_SOFT_HCAS: " + why;
    return false;
  }
  bool placed = true;
  for (const soft::Adapter& s : adapters) {
    std::string here;
    if (!place_soft_hca(machine, s.name, s.place, here)) {
      why = "TWINPATH_SOFT_HCAS: " + s.name + ": " + here;
      placed = false;
      (void)place_soft_hca(machine, s.name, "none", here);
    }
    Hca& hca = *machine.find_hca(s.name);
    hca.ports.clear();
    for (int i = 1; i <= s.ports; ++i) {
      HcaPort port;
      port.number = i;
      port.state = s.up ? PortState::active : PortState::down;
      port.gbps = s.speed_gbps;
      hca.ports.push_back(port);
    }
  }
  return placed;
}

}  // namespace twinpath
