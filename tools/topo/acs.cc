#include "tools/topo/acs.h"

#include "tools/topo/names.h"
#include "topology/model/distance_rule.h"

namespace twinpath::tools::topo {
namespace {

// The port of the common switch that leads to a device: only there ACS turns traffic away, at ports
// farther down it goes up anyway.
std::optional<int> turning_port(const Machine& m, const PciFunction& f, int common) {
  std::optional<int> last;
  for (const int b : ancestors(m, f.parent)) {
    if (b == common) return last;
    last = b;
  }
  return std::nullopt;
}

std::string groups_text(const PciFunction& a, const PciFunction& b) {
  return "IOMMU groups " + std::to_string(*a.iommu_group) + " and " +
         std::to_string(*b.iommu_group);
}

// Without a readable ACS capability: what the groups say.
AcsView by_groups(const PciFunction& gpu, const PciFunction& hca) {
  AcsView view;
  if (!gpu.iommu_group || !hca.iommu_group) {
    view.text = "not known: ACS registers were not readable (needs root)";
    return view;
  }
  if (*gpu.iommu_group == *hca.iommu_group) {
    view.verdict = Verdict::ok;
    view.text = "both in IOMMU group " + std::to_string(*gpu.iommu_group) +
                ": no port isolates them (registers not read)";
    return view;
  }
  view.verdict = Verdict::bad;
  view.text = groups_text(gpu, hca) + ": ports of their switch isolate them (registers not read)";
  return view;
}

}  // namespace

AcsView acs_view(const Machine& m, const Gpu& gpu, const Hca& hca) {
  AcsView view;
  const PciFunction* path = hca.data_path();
  if (path == nullptr) {
    view.verdict = Verdict::ok;
    view.text = "no PCIe device";
    return view;
  }
  const Relation r = gpu_to_hca(m, gpu, hca);
  if (!r.lca || r.pcie > Distance::pxb) {
    view.verdict = r.pcie == Distance::unknown ? Verdict::unknown : Verdict::ok;
    view.text = r.pcie == Distance::unknown ? "not known: their place is not"
                                            : "of no account: the way leads through the root "
                                              "complex anyway";
    return view;
  }
  bool unread = false, any = false;
  const auto look = [&](const PciFunction& f, bool is_gpu) {
    const auto port = turning_port(m, f, *r.lca);
    if (!port) return;
    const PciFunction& bridge = m.bridges[static_cast<std::size_t>(*port)].pci;
    if (!bridge.acs) {
      unread = true;
      return;
    }
    any = true;
    const AcsControl acs = *bridge.acs;
    // A request is judged at the port of the one that asks, its answer at the other's.
    const bool redirects =
        is_gpu ? acs.completion_redirect() : acs.request_redirect() || acs.egress_control();
    if (redirects) view.ports.push_back(bridge.bus.text() + " (" + acs.text() + ")");
    if (is_gpu && acs.request_redirect()) view.doorbell_redirected = true;
  };
  look(*path, false);
  look(gpu.pci, true);
  if (!view.ports.empty()) {
    view.verdict = Verdict::bad;
    view.text = "redirected through the root complex at " + joined(view.ports, ", ");
    return view;
  }
  if (unread || !any) {
    const bool hidden = m.host.extended_config != true;
    AcsView other = by_groups(gpu.pci, *path);
    if (other.verdict == Verdict::unknown && !hidden) {
      other.verdict = Verdict::ok;
      other.text = "the ports between them have no ACS";
    }
    return other;
  }
  view.verdict = Verdict::ok;
  view.text = "no port between them redirects their traffic";
  return view;
}

IommuView iommu_view(const Machine& m, const Gpu& gpu, const Hca& hca) {
  IommuView view;
  const PciFunction* path = hca.data_path();
  const auto& on = m.host.iommu_on;
  if (on == false || path == nullptr) {
    view.verdict = Verdict::ok;
    view.text = on == false ? "off" : "no PCIe device";
    return view;
  }
  const auto& type = path->iommu_type ? path->iommu_type : gpu.pci.iommu_type;
  if (type) {
    view.verdict = *type == "identity" ? Verdict::ok : Verdict::bad;
    view.text =
        *type == "identity" ? "on, passthrough (identity)" : "on, translated (" + *type + ")";
  } else if (on == true) {
    view.text = "on; whether it translates is not known";
  } else {
    view.text = "not known";
  }
  if (gpu.pci.iommu_group && path->iommu_group && *gpu.pci.iommu_group != *path->iommu_group)
    view.text += "; " + groups_text(gpu.pci, *path);
  return view;
}

}  // namespace twinpath::tools::topo
