// A provider's topology file laid over a machine whose hypervisor hides the tree.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "topology/model/distance_rule.h"
#include "topology/model/finish.h"
#include "topology/read/nccl_xml.h"

namespace twinpath {
namespace {

// All functions of a machine, to be moved.
std::vector<PciFunction*> functions(Machine& machine) {
  std::vector<PciFunction*> out;
  for (Gpu& g : machine.gpus) out.push_back(&g.pci);
  for (Hca& h : machine.hcas) {
    if (h.pci) out.push_back(&*h.pci);
    if (h.data_direct) out.push_back(&*h.data_direct);
  }
  for (DmaFunction& f : machine.dma_functions) out.push_back(&f);
  return out;
}

// The functions that a file names, by their addresses.
std::map<BusId, PciFunction*> by_address(Machine& placed) {
  std::map<BusId, PciFunction*> out;
  for (PciFunction* f : functions(placed)) out.emplace(f->bus, f);
  for (PciFunction& f : placed.unnamed) out.emplace(f.bus, &f);
  return out;
}

// A node's number, unless the file has none for it: the machine's own stands then.
std::optional<int> told(const Machine& placed, std::optional<int> node) {
  const NumaNode* n = node ? placed.numa_node(*node) : nullptr;
  return n != nullptr && !n->assumed ? node : std::nullopt;
}

struct Move {
  PciFunction* ours;
  std::vector<int> switches;  // in `placed`, nearest first
  std::optional<int> numa;
};

// The host bridge above a function, if there is one.
std::optional<int> host_bridge(const Machine& machine, const PciFunction& f) {
  const std::vector<int> up = ancestors(machine, f.parent);
  if (up.empty()) return std::nullopt;
  const Bridge& top = machine.bridges[static_cast<std::size_t>(up.back())];
  return top.kind == BridgeKind::host_bridge ? std::optional<int>(up.back()) : std::nullopt;
}

}  // namespace

std::size_t named_in(const Machine& machine, const Machine& placed) {
  Machine ours = machine, other = placed;
  const std::map<BusId, PciFunction*> theirs = by_address(other);
  std::size_t n = 0;
  for (const PciFunction* f : functions(ours)) n += theirs.count(f->bus);
  return n;
}

int apply_nccl_placement(Machine& machine, const Machine& placed, const std::string& source) {
  Machine other = placed;
  const std::map<BusId, PciFunction*> theirs = by_address(other);
  std::vector<Move> moves;
  for (PciFunction* f : functions(machine)) {
    const auto it = theirs.find(f->bus);
    if (it != theirs.end())
      moves.push_back({f, nccl_switches(other, *it->second), told(placed, it->second->numa)});
  }
  // A top switch goes below the host bridge that all its devices share; if they share none, the
  // file knows better and the switch gets one of its own.
  std::map<int, std::optional<int>> host_of;
  for (const Move& m : moves) {
    if (m.switches.empty()) continue;
    const auto host = host_bridge(machine, *m.ours);
    const auto [it, first] = host_of.emplace(m.switches.back(), host);
    if (!first && it->second != host) it->second = std::nullopt;
  }
  std::map<int, int> copied;  // bridge of `placed` to ours
  for (const Move& m : moves) {
    if (m.numa) m.ours->numa = m.numa;
    std::optional<int> parent;
    for (auto it = m.switches.rbegin(); it != m.switches.rend(); ++it) {
      const auto known = copied.find(*it);
      if (known != copied.end()) {
        parent = known->second;
        continue;
      }
      Bridge b = other.bridges[static_cast<std::size_t>(*it)];
      if (!parent) {
        parent = host_of[m.switches.back()];
        if (!parent) {
          Bridge host;
          host.kind = BridgeKind::host_bridge;
          host.pci.bus = {b.pci.bus.domain, b.pci.bus.bus, b.pci.bus.device, 0};
          host.pci.numa = m.numa;
          parent = static_cast<int>(machine.bridges.size());
          machine.bridges.push_back(std::move(host));
        }
      }
      b.pci.parent = parent;
      parent = static_cast<int>(machine.bridges.size());
      machine.bridges.push_back(std::move(b));
      copied.emplace(*it, *parent);
    }
    // Without a switch in the file a device stays below the bridges it has.
    if (parent) m.ours->parent = parent;
  }
  for (const NumaNode& n : placed.numa_nodes)
    if (!n.assumed && machine.numa_node(n.id) == nullptr) machine.numa_nodes.push_back(n);
  for (Hca& h : machine.hcas) {
    const Hca* other_hca = placed.find_hca(h.name);
    if (other_hca == nullptr || h.data_path() != nullptr) continue;
    if (const auto numa = told(placed, other_hca->numa)) h.numa = numa;
  }
  for (Gpu& g : machine.gpus) {
    const Gpu* other_gpu = placed.find_gpu(g.pci.bus);
    if (other_gpu == nullptr) continue;
    // A C2C link goes to the GPU's own node.
    if (!g.c2c_node && other_gpu->c2c_node)
      g.c2c_node = told(placed, other_gpu->c2c_node) ? other_gpu->c2c_node : g.pci.numa;
    if (!g.compute_capability) g.compute_capability = other_gpu->compute_capability;
    if (!g.nvlinks) g.nvlinks = other_gpu->nvlinks;
  }
  machine.sources.push_back("placement by " + source);
  if (moves.empty()) {
    machine.warn("PLACEMENT_UNUSED", source + " names none of this machine's devices",
                 "give the file for this machine type");
  }
  finish_machine(machine);
  return static_cast<int>(moves.size());
}

}  // namespace twinpath
