#pragma once
// How far two devices of one machine are from each other.  Pure functions on Machine.
//
// The lowest common ancestor of the two functions decides: a PCI bridge gives SELF, PIX or PXB, a
// host bridge PHB, none NODE, SOCK, SYS or unknown by NUMA node and package.  Then NVLink-C2C: an
// HCA on the CPU that the GPU is coherently linked to is C2C where it would be PHB or NODE.
//
// NCCL's letter differs (no NODE, no SOCK, Broadcom's nested switches flattened): nccl_letter().
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/model/distance.h"
#include "topology/model/machine.h"

namespace twinpath {

struct Relation {
  Distance distance = Distance::unknown;
  Distance pcie = Distance::unknown;               // without C2C
  Distance physical_function = Distance::unknown;  // of the PF, where data direct was used
  bool data_direct = false;                        // the HCA's data-direct function was measured
  std::optional<int> lca;                          // bridge index of the lowest common ancestor
  int bridges_a = 0,
      bridges_b = 0;  // PCI bridges between each device and it, on-card ones left out
  // PXB by the rules, but both levels are one physical switch (Broadcom Gen4/Gen5 inner levels).
  bool one_switch = false;
};

// Of two functions by PCIe and NUMA alone (no C2C).
Relation relate(const Machine& machine, const PciFunction& a, const PciFunction& b);
Relation gpu_to_hca(const Machine& machine, const Gpu& gpu, const Hca& hca);
Relation hca_to_hca(const Machine& machine, const Hca& a, const Hca& b);
// Of a GPU and any other function (a DMA function whose HCA is unknown): with the C2C rule.
Relation gpu_to_function(const Machine& machine, const Gpu& gpu, const PciFunction& function);

// Bridges from a device up to its host bridge, nearest first.
std::vector<int> ancestors(const Machine& machine, std::optional<int> parent);
// The switch a device hangs below: bridge index of the nearest upstream port above it.
std::optional<int> switch_above(const Machine& machine, const PciFunction& function);

// NCCL's name of the path: LOC, PIX, PXB, P2C, PHB or SYS.
std::string_view nccl_letter(const Machine& machine, const Gpu& gpu, const PciFunction& function);
std::string_view nccl_letter(const Machine& machine, const Gpu& gpu, const Hca& hca);
// The CPU node that an adapter is attached to, if it is told.
std::optional<int> numa_of(const Hca& hca);
// The bridges that NCCL keeps as switches above a device, nearest first, before flattening.
std::vector<int> nccl_switches(const Machine& machine, const PciFunction& function);
// 4 or 5 for a level of a Broadcom Gen4 or Gen5 switch that NCCL merges, 0 otherwise.  Level 0 is
// the outer one; the inner levels (1) look like switches of their own.
int broadcom_generation(const PciId& id, int level);

}  // namespace twinpath
