// What holds between each GPU and the HCA that serves it: class, ACS, IOMMU, NUMA, links.
#include "tools/topo/acs.h"
#include "tools/topo/check.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

void placement(const Report& r, const PairReport& p, const std::string& object, Checks& out) {
  const Distance d = p.distance();
  const std::string name(twinpath::name_of(d));
  const bool guest = r.machine.host.virtual_machine == true;
  if (d <= Distance::c2c || p.facts.without_place) {
    out.add("class", object, Level::ok,
            p.facts.without_place ? "a software HCA without a place" : name + ": near");
  } else if (d == Distance::unknown) {
    out.add("class", object, Level::unknown, "nothing tells where they sit",
            guest ? "the provider's topology as NCCL_TOPO_FILE, or a platform file"
                  : "the BIOS must report NUMA nodes, or a platform file");
  } else if (d <= Distance::node) {
    out.add("class", object, Level::warn,
            name + (guest ? ": as far as the hypervisor shows" : ": through the root complex"),
            guest ? "the provider's topology as NCCL_TOPO_FILE, or a platform file"
                  : "an HCA below the GPU's switch; reads often run at half rate here");
  } else {
    out.add("class", object, Level::warn, name + ": across the socket link",
            "an HCA on the GPU's own socket");
  }
}

void isolation(const Report& r, const PairReport& p, const std::string& object, Checks& out) {
  const Machine& m = r.machine;
  const Gpu& gpu = m.gpus[static_cast<std::size_t>(p.gpu)];
  const Hca& hca = m.hcas[static_cast<std::size_t>(p.hca)];
  const AcsView acs = acs_view(m, gpu, hca);
  const bool guest = m.host.virtual_machine == true;
  if (acs.verdict == Verdict::ok) {
    out.add("acs", object, Level::ok, acs.text);
  } else if (acs.verdict == Verdict::bad) {
    out.add("acs", object, Level::warn, acs.text,
            guest ? "the hypervisor's business; ask the provider"
                  : "bare metal: turn ACS off in the BIOS, or `setpci -s PORT ECAP_ACS+6.w=0`");
  } else {
    out.add("acs", object, Level::unknown, acs.text,
            m.host.extended_config == true ? "" : "run once as root on the node");
  }
  if (acs.doorbell_redirected && hca.kind == HcaKind::mlx5 && !hca.data_direct)
    out.add(
        "acs-doorbell", object, Level::ok,
        "the GPU's port redirects its requests: in mode gda its doorbells go up and down again");
  const IommuView iommu = iommu_view(m, gpu, hca);
  if (m.host.iommu_on.value_or(false)) {
    const Level level = iommu.verdict == Verdict::ok    ? Level::ok
                        : iommu.verdict == Verdict::bad ? Level::warn
                                                        : Level::unknown;
    // Grace runs with translation: its data-direct functions share a group with the GPU.
    const bool shared = gpu.pci.iommu_group && hca.data_path() != nullptr &&
                        hca.data_path()->iommu_group == gpu.pci.iommu_group;
    out.add("iommu", object, shared ? Level::ok : level, iommu.text + (shared ? ", one group" : ""),
            level == Level::ok || shared ? ""
            : level == Level::warn       ? "kernel parameter iommu=pt, or the IOMMU off in the BIOS"
                                         : "see /sys/kernel/iommu_groups/*/type");
  }
  if (hca.data_direct && gpu.pci.iommu_group && hca.data_direct->iommu_group &&
      *gpu.pci.iommu_group != *hca.data_direct->iommu_group)
    out.add("data-direct", object, Level::fail,
            "its DMA function and the GPU are in IOMMU groups " +
                std::to_string(*hca.data_direct->iommu_group) + " and " +
                std::to_string(*gpu.pci.iommu_group),
            "`rdma_topo write-grub-acs`, or NVreg_GrdmaPciTopoCheckOverride=1");
}

void functions(const Machine& m, const PciFunction& f, const std::string& name, Checks& out) {
  if (f.numa || m.only_cpu_node() || m.numa_nodes.size() < 2) {
    out.add("numa", name, Level::ok, "told");
  } else {
    out.add("numa", name, m.host.virtual_machine == true ? Level::unknown : Level::warn,
            "its NUMA node is not told",
            m.host.virtual_machine == true ? "the provider's topology as NCCL_TOPO_FILE"
                                           : "set it in the BIOS; or give a platform file");
  }
}

void gpu_link(const Machine& m, const Gpu& g, Checks& out) {
  const PcieLink& l = g.pci.link;
  if (!l.gts || !l.max_gts || !l.width || !l.max_width) {
    out.add("gpu-link", gpu_name(g), Level::unknown, "current and highest rate were not told apart",
            "see `nvidia-smi -q -d PERFORMANCE`");
  } else if (*l.width < *l.max_width && m.host.virtual_machine != true) {
    out.add("gpu-link", gpu_name(g), Level::warn,
            "runs at x" + std::to_string(*l.width) + ", can do x" + std::to_string(*l.max_width),
            "reseat the card; see the slot and the BIOS");
  } else {
    // A GPU at rest lowers its rate, so only its width is judged.
    out.add("gpu-link", gpu_name(g), Level::ok, "all lanes");
  }
}

}  // namespace

void check_paths(const Report& r, Checks& out) {
  const Machine& m = r.machine;
  if (m.gpus.empty()) return;
  out.begin("each GPU and its HCA");
  for (const GpuReport& g : r.gpus) {
    const Gpu& gpu = m.gpus[static_cast<std::size_t>(g.gpu)];
    functions(m, gpu.pci, gpu_name(gpu), out);
    gpu_link(m, gpu, out);
    if (!gpu.pci.parent)
      out.add("parent", gpu_name(gpu), Level::warn, "not below any known bridge",
              "mount /sys readable, or give a platform file");
    if (!g.hca) {
      if (!m.hcas.empty())
        out.add("class", gpu_name(gpu), Level::fail, "no usable HCA",
                "see the ports above, and the platform file");
      continue;
    }
    const std::string object = gpu_name(gpu) + " " + m.hcas[static_cast<std::size_t>(*g.hca)].name;
    const PairReport& p = r.pair(g.gpu, *g.hca);
    placement(r, p, object, out);
    isolation(r, p, object, out);
  }
  for (const Hca& h : m.hcas)
    if (h.pci && h.role == HcaRole::data) functions(m, *h.pci, h.name, out);
}

}  // namespace twinpath::tools::topo
