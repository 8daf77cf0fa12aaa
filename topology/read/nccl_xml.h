#pragma once
// NCCL's topology XML: what NCCL_TOPO_FILE gives and NCCL_TOPO_DUMP_FILE writes.
//
// The file has one <cpu> per NUMA node, below it one <pci> per switch (its upstream port only) and
// per device.  A switch becomes a folded Bridge, a <cpu> one host bridge for each PCI domain below
// it: NCCL does not tell host bridges apart, so two devices of one domain below one <cpu> are PHB,
// of two domains NODE.  Adapters right below a <cpu> (bonds, veth) have no PCI place and its NUMA
// node.  Names that end in "_dma" are data-direct functions of the HCA before the ending.  A <cpu>
// without a number (numaid -1, or none) is a place of its own; a <pci> that is neither a switch nor
// says what it is serves to place a device that the machine knows.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/model/machine.h"

namespace twinpath {

// One Machine for each host in the file (several where NVLink spans hosts), in its order.
// nullopt and `why` (with the line where there is one) for text that is not such a file.
std::optional<std::vector<Machine>> parse_nccl_xml(std::string_view text, std::string& why);
// The same of a file; `why` begins with the path.
std::optional<std::vector<Machine>> read_nccl_xml(const std::string& path, std::string& why);

// A file that NCCL_TOPO_FILE takes.  Attributes that are unknown are left out: NCCL reads those of
// existing devices itself.
std::string write_nccl_xml(const Machine& machine);

// Puts the devices of `machine` that stand in `placed` (by bus id) where `placed` has them: for
// virtual machines whose provider publishes such a file.  Only what the file knows changes: two
// devices that it does not put below a common switch keep their host bridge where they share one.
// Returns the number of devices moved; source and warnings are kept up to date.
int apply_nccl_placement(Machine& machine, const Machine& placed, const std::string& source);

// How many functions of `machine` stand in `placed`.
std::size_t named_in(const Machine& machine, const Machine& placed);

}  // namespace twinpath
