// Distance as NCCL's graph search sees it.  NCCL keeps one node for each switch (its upstream
// port), drops root and downstream ports, merges the inner levels of Broadcom switches, and hangs
// everything below CPUs by NUMA number.  The path's letter is that of its worst hop.
#include <algorithm>
#include <set>

#include "topology/model/distance_rule.h"

namespace twinpath {
namespace {

const Bridge& bridge_at(const Machine& machine, int index) {
  return machine.bridges[static_cast<std::size_t>(index)];
}

}  // namespace

std::vector<int> nccl_switches(const Machine& machine, const PciFunction& function) {
  const std::vector<int> up = ancestors(machine, function.parent);
  std::vector<int> switches;
  for (std::size_t i = 0; i < up.size(); ++i) {
    // An ordinary port is passed over; the component above it is the switch, unless it is the
    // host bridge.
    if (!bridge_at(machine, up[i]).folded && ++i == up.size()) break;
    if (bridge_at(machine, up[i]).kind == BridgeKind::host_bridge) break;
    switches.push_back(up[i]);
  }
  return switches;
}

namespace {

// Inner levels merged away: a switch goes when the one above it is the outer level of the same
// Broadcom generation.  A merged switch is not merged again, so only one level goes.
std::vector<int> flattened(const Machine& machine, const std::vector<int>& switches) {
  std::vector<int> out;
  bool took = false;
  for (auto it = switches.rbegin(); it != switches.rend(); ++it) {
    if (!out.empty() && !took) {
      const int outer = broadcom_generation(bridge_at(machine, out.back()).pci.id, 0);
      if (outer != 0 && outer == broadcom_generation(bridge_at(machine, *it).pci.id, 1)) {
        took = true;
        continue;
      }
    }
    took = false;
    out.push_back(*it);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::string_view nccl_letter(const Machine& machine, const Gpu& gpu, const PciFunction& function) {
  if (gpu.pci.bus == function.bus) return "LOC";
  const std::vector<int> a = flattened(machine, nccl_switches(machine, gpu.pci));
  const std::vector<int> b = flattened(machine, nccl_switches(machine, function));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto j = std::find(b.begin(), b.end(), a[i]);
    if (j == b.end()) continue;
    return i == 0 && j == b.begin() ? "PIX" : "PXB";
  }
  if (gpu.pci.numa != function.numa) return "SYS";  // two unknowns are one CPU for NCCL
  return gpu.c2c_node && gpu.c2c_node == function.numa ? "P2C" : "PHB";
}

std::string_view nccl_letter(const Machine& machine, const Gpu& gpu, const Hca& hca) {
  if (const PciFunction* f = hca.data_path()) return nccl_letter(machine, gpu, *f);
  // NCCL hangs an adapter without a PCI place below the first CPU, unless a file hangs it
  // elsewhere.
  std::optional<int> cpu = hca.numa;
  const auto first = std::find_if(machine.numa_nodes.begin(), machine.numa_nodes.end(),
                                  [](const NumaNode& n) { return n.has_cpus; });
  if (!cpu && first != machine.numa_nodes.end()) cpu = first->id;
  if (!cpu || gpu.pci.numa != cpu) return "SYS";
  return gpu.c2c_node == cpu ? "P2C" : "PHB";
}

}  // namespace twinpath
