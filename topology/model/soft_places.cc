#include "topology/model/soft_places.h"

#include "plugin/fabric/soft/device_spec.h"
#include "topology/model/place.h"

namespace twinpath {

bool place_soft_hcas(Machine& machine, const Config& config, std::string& why) {
  const auto specs = soft::parse_device_specs(config.soft_hcas, why);
  if (!specs) {
    why = "TWINPATH_SOFT_HCAS: " + why;
    return false;
  }
  bool placed = true;
  for (const soft::DeviceSpec& s : *specs) {
    const std::string place = !s.place.empty() ? s.place : s.pci_path.empty() ? "none" : s.pci_path;
    std::string here;
    if (!place_soft_hca(machine, s.name, place, here)) {
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
