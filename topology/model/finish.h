#pragma once
// What every reader does last: order, bridge kinds, roles of adapters, virtual machine or not, and
// the warnings that follow from the values alone.
#include "topology/model/machine.h"

namespace twinpath {

void finish_machine(Machine& machine);

// Whether the DMI texts and bridges name a hypervisor; nullopt when they say nothing.
std::optional<bool> judge_virtual(const Machine& machine);
// Marks management adapters: BlueField or default-route ports slower than the rest, adapters whose
// PCIe link carries less than a quarter of their port (or of the best link around).
void assign_roles(Machine& machine);
// The warnings that follow from the values (NUMA_UNKNOWN, LINK_DEGRADED, GUID_SHARED, VM_FLAT,
// MGMT_NIC, GPU_NO_PARENT), made anew; those of the readers stay.
void refresh_findings(Machine& machine);

}  // namespace twinpath
