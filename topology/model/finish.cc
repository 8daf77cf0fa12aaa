#include "topology/model/finish.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "topology/model/distance_rule.h"
#include "topology/model/pci_ids.h"

namespace twinpath {
namespace {

std::string number(double v) {
  char out[32];
  std::snprintf(out, sizeof out, "%.3g", v);
  return out;
}

std::string gpu_text(const Gpu& gpu) {
  return "GPU" + std::to_string(gpu.index) + " (" + gpu.pci.bus.text() + ")";
}

std::optional<int> fastest_port(const Hca& hca) {
  std::optional<int> most;
  for (const HcaPort& p : hca.ports)
    if (p.gbps && (!most || *p.gbps > *most)) most = p.gbps;
  return most;
}

// Why an adapter is not for data; empty when it is.
std::string management_reason(const Hca& hca, std::optional<double> best_link,
                              std::optional<int> best_port, bool virtual_machine) {
  const std::optional<double> link = hca.pci ? hca.pci->link.at_most() : std::nullopt;
  const std::optional<int> port = fastest_port(hca);
  if (link && best_link && *link < *best_link / 4)
    return "PCIe link of " + number(*link) + " GB/s, others have " + number(*best_link);
  // Hypervisors invent links, so there only the comparison counts.
  if (link && port && !virtual_machine && *link * 8 < *port / 4.0)
    return "PCIe link of " + number(*link) + " GB/s for a port of " + std::to_string(*port) +
           " Gbit/s";
  if (!port || !best_port || *port >= *best_port) return {};
  const std::string slower =
      std::to_string(*port) + " Gbit/s, others have " + std::to_string(*best_port);
  if (hca.pci && is_bluefield(hca.pci->id)) return "BlueField with " + slower;
  if (hca.default_route == true) return "carries the default route, " + slower;
  return {};
}

void warn_functions(Machine& machine, const PciFunction& f, const std::string& what, bool is_gpu) {
  if (!f.numa && !machine.only_cpu_node() && machine.numa_nodes.size() > 1) {
    machine.warn("NUMA_UNKNOWN", what + " does not tell its NUMA node",
                 machine.host.virtual_machine == true
                     ? "placement is hidden by the hypervisor: give a platform file"
                     : "set it in the BIOS, or give a platform file");
  }
  const PcieLink& l = f.link;
  if (!l.degraded()) return;
  // A GPU at rest lowers its speed, never its width.
  const bool width = *l.width < *l.max_width;
  if (is_gpu && !width) return;
  machine.warn("LINK_DEGRADED",
               what + " runs at " + number(*l.gts) + " GT/s x" + std::to_string(*l.width) +
                   ", can do " + number(*l.max_gts) + " GT/s x" + std::to_string(*l.max_width),
               "reseat the card, look at slot and BIOS settings");
}

void warn_shared_guids(Machine& machine) {
  std::map<std::uint64_t, std::string> seen;
  for (const Hca& h : machine.hcas) {
    if (!h.node_guid) continue;
    const auto [it, first] = seen.emplace(*h.node_guid, h.name);
    if (first) continue;
    machine.warn("GUID_SHARED", h.name + " has the same node GUID as " + it->second,
                 "give the virtual functions GUIDs of their own (ip link set ... node_guid)");
  }
}

// A virtual machine whose GPUs have no adapter behind a common switch although there are several
// of both: nothing of the true tree is visible.
void warn_flat(Machine& machine) {
  if (machine.host.virtual_machine != true || machine.gpus.size() < 2) return;
  std::size_t placed = 0;
  for (const Hca& h : machine.hcas) {
    if (h.data_path() == nullptr) continue;
    ++placed;
    for (const Gpu& g : machine.gpus)
      if (gpu_to_hca(machine, g, h).pcie <= Distance::pxb) return;
  }
  if (placed == 0) return;
  machine.warn("VM_FLAT",
               std::to_string(machine.gpus.size()) + " GPUs and " + std::to_string(placed) +
                   " HCAs without a common switch: the hypervisor hides the PCIe tree",
               "give the provider's topology as NCCL_TOPO_FILE");
}

}  // namespace

std::optional<bool> judge_virtual(const Machine& machine) {
  const std::string& vendor = machine.host.vendor;
  const std::string& product = machine.host.product;
  auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  if (has(vendor, "Amazon EC2")) return !has(product, "metal");
  if (has(vendor, "Microsoft") && has(product, "Virtual Machine")) return true;
  for (const char* name : {"QEMU", "VMware", "Xen", "innotek", "Parallels", "OpenStack", "KVM",
                           "Virtual Machine", "Google Compute Engine", "Alibaba Cloud ECS"}) {
    if (has(vendor, name) || has(product, name)) return true;
  }
  for (const Bridge& b : machine.bridges)
    if (is_emulated_bridge(b.pci.id)) return true;
  return std::nullopt;
}

void assign_roles(Machine& machine) {
  std::optional<double> best_link;
  std::optional<int> best_port;
  for (const Hca& h : machine.hcas) {
    if (h.kind == HcaKind::soft || !h.foreign.empty()) continue;
    const std::optional<double> link = h.pci ? h.pci->link.at_most() : std::nullopt;
    if (link && (!best_link || *link > *best_link)) best_link = link;
    const std::optional<int> port = fastest_port(h);
    if (port && (!best_port || *port > *best_port)) best_port = port;
  }
  for (Hca& h : machine.hcas) {
    h.role_reason =
        h.kind == HcaKind::soft
            ? std::string()
            : management_reason(h, best_link, best_port, machine.host.virtual_machine == true);
    h.role = h.role_reason.empty() ? HcaRole::data : HcaRole::management;
  }
}

void refresh_findings(Machine& machine) {
  constexpr std::array<std::string_view, 6> kOurs = {
      "NUMA_UNKNOWN", "LINK_DEGRADED", "GUID_SHARED", "VM_FLAT", "MGMT_NIC", "GPU_NO_PARENT"};
  std::erase_if(machine.warnings, [&](const TopologyWarning& w) {
    return std::find(kOurs.begin(), kOurs.end(), w.code) != kOurs.end();
  });
  for (const Gpu& g : machine.gpus) {
    if (!g.pci.parent) {
      machine.warn("GPU_NO_PARENT",
                   gpu_text(g) + " is not below any known bridge: only its NUMA node counts",
                   "mount /sys readable, or give a platform file");
    }
    warn_functions(machine, g.pci, gpu_text(g), true);
  }
  for (const Hca& h : machine.hcas) {
    if (h.pci && h.kind != HcaKind::soft) warn_functions(machine, *h.pci, h.name, false);
    if (h.role == HcaRole::management)
      machine.warn("MGMT_NIC", h.name + " is left out as a management adapter: " + h.role_reason,
                   "name it in NCCL_IB_HCA if it is meant to carry data");
  }
  warn_shared_guids(machine);
  warn_flat(machine);
}

void finish_machine(Machine& machine) {
  for (Gpu& g : machine.gpus) g.amd = g.amd || g.pci.id.vendor == kAmdGpu;
  complete_bridges(machine);
  sort_devices(machine);
  if (!machine.host.virtual_machine) machine.host.virtual_machine = judge_virtual(machine);
  assign_roles(machine);
  refresh_findings(machine);
}

}  // namespace twinpath
