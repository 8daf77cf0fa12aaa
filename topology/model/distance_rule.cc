#include "topology/model/distance_rule.h"

#include <algorithm>
#include <array>
#include <utility>

namespace twinpath {
namespace {

const Bridge& bridge(const Machine& machine, int index) {
  return machine.bridges[static_cast<std::size_t>(index)];
}

// The index in both chains where they meet first, if they do.
std::optional<std::pair<std::size_t, std::size_t>> meeting(const std::vector<int>& a,
                                                           const std::vector<int>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto j = std::find(b.begin(), b.end(), a[i]);
    if (j != b.end()) return std::pair{i, static_cast<std::size_t>(j - b.begin())};
  }
  return std::nullopt;
}

// Bridges below the meeting point: a folded one stands for an upstream and a downstream port.
int hops(const Machine& machine, const std::vector<int>& chain, std::size_t below) {
  int n = 0;
  for (std::size_t i = 0; i < below; ++i) {
    const Bridge& b = bridge(machine, chain[i]);
    if (!b.on_card) n += b.folded ? 2 : 1;
  }
  return n;
}

Distance by_numa(const Machine& machine, std::optional<int> a, std::optional<int> b) {
  if (!a || !b) return Distance::unknown;
  if (*a == *b) return Distance::node;
  const NumaNode* x = machine.numa_node(*a);
  const NumaNode* y = machine.numa_node(*b);
  const bool one_package =
      x != nullptr && y != nullptr && x->package && y->package && *x->package == *y->package;
  return one_package ? Distance::sock : Distance::sys;
}

// Whether every switch level between the two devices and their meeting point is part of the one
// that the meeting point belongs to.
bool one_physical_switch(const Machine& machine, const std::vector<int>& chain, std::size_t below,
                         int top) {
  const int generation = broadcom_generation(bridge(machine, top).pci.id, 0);
  if (generation == 0) return false;
  for (std::size_t i = 0; i < below; ++i) {
    const Bridge& b = bridge(machine, chain[i]);
    const bool inner = b.folded || b.kind == BridgeKind::upstream;
    if (inner && broadcom_generation(b.pci.id, 1) != generation) return false;
  }
  return true;
}

Relation with_c2c(Relation r, std::optional<int> c2c_node, std::optional<int> numa) {
  if (c2c_node && numa && *c2c_node == *numa &&
      (r.pcie == Distance::phb || r.pcie == Distance::node)) {
    r.distance = Distance::c2c;
  }
  return r;
}

}  // namespace

int broadcom_generation(const PciId& id, int level) {
  const std::uint64_t all = std::uint64_t{id.vendor} << 48 | std::uint64_t{id.device} << 32 |
                            std::uint64_t{id.subsystem_vendor} << 16 | id.subsystem_device;
  const std::uint64_t masked = all & ~std::uint64_t{0xfff};
  if (masked == 0x1000c0101000a000) return 4;
  if (masked == (0x1000c03010000000 | (level == 0 ? 0u : 0x1000u))) return 5;
  return 0;
}

std::vector<int> ancestors(const Machine& machine, std::optional<int> parent) {
  std::vector<int> out;
  // Parents have smaller indices, so this ends even on a Machine that breaks the invariants.
  for (int last = static_cast<int>(machine.bridges.size());
       parent && *parent >= 0 && *parent < last; parent = bridge(machine, last).pci.parent) {
    last = *parent;
    out.push_back(last);
  }
  return out;
}

std::optional<int> switch_above(const Machine& machine, const PciFunction& function) {
  for (const int i : ancestors(machine, function.parent)) {
    const Bridge& b = bridge(machine, i);
    if (!b.on_card && (b.folded || b.kind == BridgeKind::upstream)) return i;
  }
  return std::nullopt;
}

Relation relate(const Machine& machine, const PciFunction& a, const PciFunction& b) {
  Relation r;
  const std::vector<int> up_a = ancestors(machine, a.parent);
  const std::vector<int> up_b = ancestors(machine, b.parent);
  const auto met = meeting(up_a, up_b);
  if (met) {
    r.lca = up_a[met->first];
    r.bridges_a = hops(machine, up_a, met->first);
    r.bridges_b = hops(machine, up_b, met->second);
  }
  if (a.bus == b.bus) {
    r.pcie = Distance::self;
  } else if (!met) {
    r.pcie = by_numa(machine, a.numa, b.numa);
  } else if (bridge(machine, *r.lca).kind == BridgeKind::host_bridge) {
    r.pcie = Distance::phb;
  } else if (a.bus.same_slot(b.bus)) {
    r.pcie = Distance::self;
  } else if (r.bridges_a <= 1 && r.bridges_b <= 1) {
    r.pcie = Distance::pix;
  } else {
    r.pcie = Distance::pxb;
    r.one_switch = one_physical_switch(machine, up_a, met->first, *r.lca) &&
                   one_physical_switch(machine, up_b, met->second, *r.lca);
  }
  r.distance = r.pcie;
  return r;
}

Relation gpu_to_function(const Machine& machine, const Gpu& gpu, const PciFunction& function) {
  return with_c2c(relate(machine, gpu.pci, function), gpu.c2c_node, function.numa);
}

std::optional<int> numa_of(const Hca& hca) {
  const PciFunction* f = hca.data_path();
  return f == nullptr ? hca.numa : f->numa;
}

Relation gpu_to_hca(const Machine& machine, const Gpu& gpu, const Hca& hca) {
  const PciFunction* f = hca.data_path();
  if (f == nullptr) {
    Relation r;
    r.pcie = r.distance = by_numa(machine, gpu.pci.numa, hca.numa);
    r = with_c2c(r, gpu.c2c_node, hca.numa);
    r.physical_function = r.distance;
    return r;
  }
  Relation r = gpu_to_function(machine, gpu, *f);
  r.data_direct = hca.data_direct.has_value();
  if (r.data_direct && hca.pci) {
    r.physical_function = gpu_to_function(machine, gpu, *hca.pci).distance;
  } else if (!r.data_direct) {
    r.physical_function = r.distance;
  }
  return r;
}

Relation hca_to_hca(const Machine& machine, const Hca& a, const Hca& b) {
  if (!a.name.empty() && a.name == b.name) {
    Relation r;
    r.distance = r.pcie = r.physical_function = Distance::self;
    return r;
  }
  const PciFunction* x = a.data_path();
  const PciFunction* y = b.data_path();
  if (x == nullptr || y == nullptr) return {};
  Relation r = relate(machine, *x, *y);
  r.data_direct = a.data_direct || b.data_direct;
  if (a.pci && b.pci) r.physical_function = relate(machine, *a.pci, *b.pci).distance;
  return r;
}

}  // namespace twinpath
