#include "topology/read/cross_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "topology/model/distance_rule.h"
#include "topology/model/finish.h"

namespace twinpath {
namespace {

constexpr const char* kRemedy =
    "sysfs is used; mount /sys readable for hwloc (config files of bridges)";

// hwloc has 16 bits for a domain and leaves out what does not fit.
bool beyond_hwloc(const PciFunction& f) { return f.bus.domain > 0xffff; }

std::vector<BusId> chain(const Machine& machine, const PciFunction& f) {
  std::vector<BusId> out;
  for (const int i : ancestors(machine, f.parent)) {
    const Bridge& b = machine.bridges[static_cast<std::size_t>(i)];
    // hwloc names a host bridge by its bus, the kernel too; only PCI bridges are compared so that
    // an unnamed host bridge is no difference.
    if (b.kind != BridgeKind::host_bridge) out.push_back(b.pci.bus);
  }
  return out;
}

std::string shorten(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < 4; ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > 4) out += " and " + std::to_string(names.size() - 4) + " more";
  return out;
}

struct Findings {
  std::vector<std::string> chains, missing, numa;
  std::size_t sysfs_bridges = 0, hwloc_bridges = 0;
};

void compare(const Machine& sysfs, PciFunction& ours, const Machine& hwloc,
             const PciFunction* theirs, const std::string& what, Findings& found) {
  if (theirs == nullptr) {
    if (!beyond_hwloc(ours)) found.missing.push_back(what);
    return;
  }
  const auto a = chain(sysfs, ours);
  const auto b = chain(hwloc, *theirs);
  if (a != b) {
    found.chains.push_back(what);
    found.sysfs_bridges += a.size();
    found.hwloc_bridges += b.size();
  }
  if (ours.numa && theirs->numa && ours.numa != theirs->numa) found.numa.push_back(what);
  if (ours.model.empty()) ours.model = theirs->model;
  if (!ours.link.now()) ours.link.gbytes = theirs->link.gbytes;
}

void report(Machine& machine, const Findings& found) {
  if (!found.chains.empty()) {
    machine.warn("HWLOC_BLIND",
                 "hwloc sees " + std::to_string(found.hwloc_bridges) + " PCI bridges above " +
                     shorten(found.chains) + ", sysfs paths show " +
                     std::to_string(found.sysfs_bridges),
                 kRemedy);
  }
  if (!found.missing.empty())
    machine.warn("HWLOC_BLIND", "hwloc does not see " + shorten(found.missing), kRemedy);
  if (!found.numa.empty()) {
    machine.warn("HWLOC_NUMA",
                 "hwloc and sysfs name different NUMA nodes for " + shorten(found.numa),
                 "sysfs is used; look at HWLOC_PCI_LOCALITY and local_cpus");
  }
}

}  // namespace

Machine cross_checked(Machine sysfs, const Machine& hwloc) {
  Findings found;
  for (Gpu& g : sysfs.gpus) {
    const Gpu* other = hwloc.find_gpu(g.pci.bus);
    compare(sysfs, g.pci, hwloc, other == nullptr ? nullptr : &other->pci,
            "GPU" + std::to_string(g.index), found);
    if (g.name.empty() && other != nullptr) g.name = other->name;
  }
  for (Hca& h : sysfs.hcas) {
    if (!h.pci || h.kind == HcaKind::cxi) continue;  // older hwloc has no name for these
    const Hca* other = hwloc.find_hca(h.name);
    compare(sysfs, *h.pci, hwloc, other != nullptr && other->pci ? &*other->pci : nullptr, h.name,
            found);
  }
  // Data-direct functions: hwloc has them all untied.
  auto dma = [&](PciFunction& f) {
    const auto it = std::find_if(hwloc.dma_functions.begin(), hwloc.dma_functions.end(),
                                 [&](const DmaFunction& o) { return o.bus == f.bus; });
    compare(sysfs, f, hwloc, it == hwloc.dma_functions.end() ? nullptr : &*it, f.bus.text(), found);
  };
  for (DmaFunction& f : sysfs.dma_functions) dma(f);
  for (Hca& h : sysfs.hcas)
    if (h.data_direct) dma(*h.data_direct);

  std::vector<std::string> unseen;
  for (const Gpu& g : hwloc.gpus)
    if (sysfs.find_gpu(g.pci.bus) == nullptr) unseen.push_back("GPU " + g.pci.bus.text());
  for (const Hca& h : hwloc.hcas)
    if (h.kind != HcaKind::cxi && sysfs.find_hca(h.name) == nullptr) unseen.push_back(h.name);
  if (!unseen.empty()) {
    sysfs.warn("SYSFS_BLIND", "hwloc sees " + shorten(unseen) + ", sysfs does not",
               "mount /sys readable");
  }
  report(sysfs, found);
  if (sysfs.host.product.empty()) sysfs.host.product = hwloc.host.product;
  if (sysfs.host.vendor.empty()) sysfs.host.vendor = hwloc.host.vendor;
  if (!sysfs.host.virtual_machine) sysfs.host.virtual_machine = hwloc.host.virtual_machine;
  sysfs.sources.insert(sysfs.sources.end(), hwloc.sources.begin(), hwloc.sources.end());
  assign_roles(sysfs);
  refresh_findings(sysfs);
  return sysfs;
}

}  // namespace twinpath
