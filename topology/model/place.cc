#include "topology/model/place.h"

#include <algorithm>
#include <charconv>

#include "topology/model/distance_rule.h"
#include "topology/model/finish.h"
#include "topology/model/pci_ids.h"

namespace twinpath {
namespace {

// Slots that the model makes up for soft adapters: a bus number that no real one of the same domain
// could have is not to be had, so the function number counts from the adapter's position.
BusId invented(const Machine& machine) {
  BusId bus{0xfffe, 0, 0, 0};
  auto taken = [&] {
    return std::any_of(machine.hcas.begin(), machine.hcas.end(),
                       [&](const Hca& h) { return h.pci && h.pci->bus == bus; });
  };
  while (taken() && bus.bus < 0xff) ++bus.bus;
  return bus;
}

const PciFunction* find_function(const Machine& machine, const BusId& bus) {
  if (const Gpu* gpu = machine.find_gpu(bus)) return &gpu->pci;
  for (const Hca& h : machine.hcas) {
    if (h.pci && h.pci->bus == bus) return &*h.pci;
    if (h.data_direct && h.data_direct->bus == bus) return &*h.data_direct;
  }
  for (const DmaFunction& f : machine.dma_functions)
    if (f.bus == bus) return &f;
  return nullptr;
}

std::optional<int> find_bridge(const Machine& machine, const BusId& bus, bool host) {
  for (std::size_t i = 0; i < machine.bridges.size(); ++i) {
    const Bridge& b = machine.bridges[i];
    if (b.pci.bus == bus && (b.kind == BridgeKind::host_bridge) == host) return static_cast<int>(i);
  }
  return std::nullopt;
}

// The bridge whose secondary bus a function is on: by the bridges' own numbers, or by another
// device of that bus.
std::optional<int> bridge_of_bus(const Machine& machine, const BusId& bus) {
  for (std::size_t i = 0; i < machine.bridges.size(); ++i) {
    const Bridge& b = machine.bridges[i];
    if (b.kind != BridgeKind::host_bridge && !b.folded && b.secondary_bus != 0 &&
        b.pci.bus.domain == bus.domain && b.secondary_bus == bus.bus)
      return static_cast<int>(i);
  }
  auto here = [&](const PciFunction& f) {
    return f.parent && f.bus.domain == bus.domain && f.bus.bus == bus.bus;
  };
  for (const Gpu& g : machine.gpus)
    if (here(g.pci)) return g.pci.parent;
  for (const Hca& h : machine.hcas)
    if (h.pci && here(*h.pci)) return h.pci->parent;
  for (const Bridge& b : machine.bridges)
    if (here(b.pci)) return b.pci.parent;
  return find_bridge(machine, {bus.domain, bus.bus, 0, 0}, true);
}

// NUMA node of what is below a bridge, as far as one device tells.
std::optional<int> numa_below(const Machine& machine, int bridge) {
  auto is_below = [&](const PciFunction& f) {
    const auto up = ancestors(machine, f.parent);
    return std::find(up.begin(), up.end(), bridge) != up.end();
  };
  const Bridge& b = machine.bridges[static_cast<std::size_t>(bridge)];
  if (b.pci.numa) return b.pci.numa;
  for (const Gpu& g : machine.gpus)
    if (is_below(g.pci)) return g.pci.numa;
  for (const Hca& h : machine.hcas)
    if (h.pci && is_below(*h.pci)) return h.pci->numa;
  return std::nullopt;
}

// A host bridge by itself.
int new_host_bridge(Machine& machine, const BusId& bus, std::optional<int> numa) {
  Bridge host;
  host.kind = BridgeKind::host_bridge;
  host.pci.bus = {bus.domain, bus.bus, 0, 0};
  host.pci.numa = numa;
  machine.bridges.push_back(std::move(host));
  return static_cast<int>(machine.bridges.size()) - 1;
}

// A function or a sibling of it.
bool place_at(Machine& machine, std::string_view text, bool sibling, PciFunction& f,
              std::string& why) {
  const auto bus = parse_bus_id(text);
  if (!bus) {
    why = "'" + std::string(text) + "' is not a PCI address";
    return false;
  }
  const PciFunction* at = find_function(machine, *bus);
  if (at == nullptr && !sibling) {
    f.bus = *bus;
    f.parent = bridge_of_bus(machine, *bus);
    if (f.parent) return true;
  }
  if (at == nullptr) {
    why = bus->text() + " is on no known bus; give below=, bridge=, numa= or a sysfs path";
    return false;
  }
  f.bus = sibling ? invented(machine) : *bus;
  f.parent = at->parent;
  f.numa = at->numa;
  if (!sibling || !at->parent) return true;
  // As a sibling below the same switch, not in the same slot: one port further up when the device
  // hangs on a downstream port.
  const Bridge& port = machine.bridges[static_cast<std::size_t>(*at->parent)];
  if (port.kind == BridgeKind::downstream && port.pci.parent) f.parent = port.pci.parent;
  return true;
}

// Bridges named in a sysfs path, entered where they are new; the function's bus id comes last.
bool place_by_path(Machine& machine, std::string_view path, PciFunction& f, std::string& why) {
  std::optional<int> parent;
  std::optional<BusId> last;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    const std::string_view name = path.substr(0, slash);
    path.remove_prefix(std::min(slash + 1, path.size()));
    const bool host = name.starts_with("pci");
    const auto bus = parse_bus_id(host ? std::string(name.substr(3)) + ":00.0" : std::string(name));
    if (!bus) continue;
    if (last) {  // what came before was a bridge
      if (const auto known = find_bridge(machine, *last, false)) {
        parent = known;
      } else {
        Bridge b;
        b.pci.bus = *last;
        b.pci.parent = parent;
        parent = static_cast<int>(machine.bridges.size());
        machine.bridges.push_back(std::move(b));
      }
      last.reset();
    }
    if (!host) {
      last = bus;
      continue;
    }
    parent = find_bridge(machine, *bus, true);
    if (!parent) parent = new_host_bridge(machine, *bus, std::nullopt);
  }
  if (!last) {
    why = "the path names no PCI function";
    return false;
  }
  // A path without the tree in it (/sys/bus/pci/devices/BDF).
  if (!parent) return place_at(machine, last->text(), false, f, why);
  f.bus = *last;
  f.parent = parent;
  return true;
}

bool place_by_words(Machine& machine, std::string_view place, PciFunction& f, std::string& why) {
  const std::size_t equals = place.find('=');
  const std::string_view key = place.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? place : place.substr(equals + 1);
  if (equals == std::string_view::npos) return place_at(machine, value, false, f, why);
  if (key == "below") return place_at(machine, value, true, f, why);
  if (key == "bridge") {
    const auto bus = parse_bus_id(value);
    auto bridge = bus ? find_bridge(machine, *bus, false) : std::nullopt;
    if (!bridge && bus) bridge = find_bridge(machine, *bus, true);
    if (!bridge) {
      why = "'" + std::string(value) + "' is no bridge of this machine";
      return false;
    }
    f.bus = invented(machine);
    f.parent = bridge;
    f.numa = numa_below(machine, *bridge);
    return true;
  }
  if (key == "numa") {
    int node = -1;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), node);
    if (error != std::errc{} || end != value.data() + value.size() ||
        machine.numa_node(node) == nullptr) {
      why = "'" + std::string(value) + "' is no NUMA node of this machine";
      return false;
    }
    f.bus = invented(machine);
    f.numa = node;
    f.parent = new_host_bridge(machine, f.bus, node);
    return true;
  }
  why = "unknown key '" + std::string(key) + "' (known: below, bridge, numa)";
  return false;
}

}  // namespace

bool place_soft_hca(Machine& machine, std::string_view name, std::string_view place,
                    std::string& why) {
  Machine changed = machine;  // nothing half done
  std::erase_if(changed.hcas, [&](const Hca& h) { return h.name == name; });
  Hca hca;
  hca.name = name;
  hca.kind = HcaKind::soft;
  if (const Hca* old = machine.find_hca(name)) hca.ports = old->ports;
  if (place.starts_with("pci=")) place.remove_prefix(4);
  // TWINPATH_SOFT_HCAS makes a path of every value that is none.
  constexpr std::string_view kBare = "/sys/bus/pci/devices/";
  if (place.starts_with(kBare)) place.remove_prefix(kBare.size());
  if (place != "none" && !place.empty()) {
    PciFunction f;
    const bool ok = place.front() == '/' ? place_by_path(changed, place, f, why)
                                         : place_by_words(changed, place, f, why);
    if (!ok) {
      why = "place of " + std::string(name) + ": " + why;
      return false;
    }
    if (!f.numa && f.parent) f.numa = numa_below(changed, *f.parent);
    if (!f.numa) f.numa = changed.only_cpu_node();
    hca.pci = std::move(f);
  }
  changed.hcas.push_back(std::move(hca));
  finish_machine(changed);
  machine = std::move(changed);
  return true;
}

bool set_data_direct(Machine& machine, std::string_view hca_name, std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const auto bus = parse_bus_id(slash == std::string_view::npos ? path : path.substr(slash + 1));
  Hca* hca = machine.find_hca(hca_name);
  if (!bus || hca == nullptr) return false;
  if (hca->data_direct && hca->data_direct->bus == *bus) return true;
  const auto it = std::find_if(machine.dma_functions.begin(), machine.dma_functions.end(),
                               [&](const DmaFunction& f) { return f.bus == *bus; });
  if (it == machine.dma_functions.end()) return false;
  hca->data_direct = *it;
  machine.dma_functions.erase(it);
  if (machine.dma_functions.empty())
    std::erase_if(machine.warnings, [](const TopologyWarning& w) { return w.code == "DD_UNTIED"; });
  refresh_findings(machine);
  return true;
}

Gpu& set_cuda_facts(Machine& machine, const BusId& bus, const CudaFacts& facts) {
  if (machine.find_gpu(bus) == nullptr) {
    Gpu gpu;
    gpu.pci.bus = bus;
    gpu.pci.numa = machine.only_cpu_node();
    machine.gpus.push_back(std::move(gpu));
  }
  Gpu* gpu = machine.find_gpu(bus);
  if (facts.index) gpu->cuda_index = facts.index;
  if (!facts.name.empty()) gpu->name = facts.name;
  if (facts.compute_capability) gpu->compute_capability = facts.compute_capability;
  if (facts.gdr) gpu->gdr = facts.gdr;
  if (facts.host_numa && *facts.host_numa >= 0 && !gpu->c2c_node) gpu->c2c_node = facts.host_numa;
  finish_machine(machine);
  return *machine.find_gpu(bus);
}

}  // namespace twinpath
