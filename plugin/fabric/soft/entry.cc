// See entry.h.
#include "plugin/fabric/soft/entry.h"

#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/device_spec.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/like.h"

namespace twinpath::soft {
namespace {

bool load(Verbs& table, const Config& config, std::string& why_not) {
  auto hca = Hca::instance(config, why_not);
  if (!hca || !(*hca)->set_devices(config.soft_hcas, why_not)) return false;
  fill(table);
  table.ordered = !(*hca)->posted().on();
  return true;
}

bool adapters(std::string_view specification, std::vector<Adapter>& out, std::string& why) {
  const auto specs = parse_device_specs(specification, why);
  if (!specs) return false;
  out.clear();
  for (const DeviceSpec& s : *specs) {
    const std::string place = !s.place.empty() ? s.place : s.pci_path.empty() ? "none" : s.pci_path;
    out.push_back({s.name, place, s.ports, s.speed_gbps, s.up, s.peermem});
  }
  return true;
}

}  // namespace

const SoftHca& entry() {
  static constexpr SoftHca kEntry{load, load_mlx5, adapters, gid_version, make_reach};
  return kEntry;
}

}  // namespace twinpath::soft
