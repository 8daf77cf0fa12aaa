// The PCIe tree as text: NUMA nodes, host bridges, switches, GPUs and HCAs.
#include <algorithm>

#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {
namespace {

class Tree {
 public:
  explicit Tree(const Report& report) : r_(report), m_(report.machine) {}

  std::string run() {
    std::vector<std::optional<int>> nodes;
    for (const NumaNode& n : m_.numa_nodes)
      if (n.has_cpus) nodes.emplace_back(n.id);
    nodes.emplace_back(std::nullopt);
    for (const auto& node : nodes) {
      std::vector<int> hosts;
      for (std::size_t i = 0; i < m_.bridges.size(); ++i) {
        const int b = static_cast<int>(i);
        if (!m_.bridges[i].pci.parent && node_of(b) == node && leads_somewhere(b))
          hosts.push_back(b);
      }
      std::string below;
      for (const int b : hosts) below += bridge(b, 2);
      below += devices(std::nullopt, node, 2);
      if (below.empty() && !node) continue;
      out_ += node ? "NUMA node " + std::to_string(*node) + package(*node) : "NUMA node not told";
      out_ += "\n" + (below.empty() ? "  (no GPU or HCA)\n" : below);
    }
    for (const Hca& h : m_.hcas)
      if (h.data_path() == nullptr)
        out_ += "not on PCIe: " + h.name + "  " + hca_model(h) + "  " + ports_text(h) + "\n";
    return out_.empty() ? "no PCIe device known\n" : out_;
  }

 private:
  std::string package(int node) const {
    const NumaNode* n = m_.numa_node(node);
    return n != nullptr && n->package ? " (socket " + std::to_string(*n->package) + ")" : "";
  }

  // A host bridge tells no NUMA node; what hangs below it does.
  std::optional<int> node_of(int b) const {
    const PciFunction& f = m_.bridges[static_cast<std::size_t>(b)].pci;
    if (f.numa && m_.numa_node(*f.numa) != nullptr) return f.numa;
    std::optional<int> found;
    each_below(b, [&](const PciFunction& d) {
      if (!found) found = d.numa;
    });
    if (found && m_.numa_node(*found) == nullptr) found.reset();
    return found;
  }
  bool leads_somewhere(int b) const {
    bool any = false;
    each_below(b, [&](const PciFunction&) { any = true; });
    return any;
  }
  template <class F>
  void each_below(int b, F&& use) const {
    const auto below = [&](const PciFunction& f) {
      const std::vector<int> up = ancestors(m_, f.parent);
      if (std::find(up.begin(), up.end(), b) != up.end()) use(f);
    };
    for (const Gpu& g : m_.gpus) below(g.pci);
    for (const Hca& h : m_.hcas) {
      if (h.pci) below(*h.pci);
      if (h.data_direct) below(*h.data_direct);
    }
    for (const DmaFunction& f : m_.dma_functions) below(f);
  }

  std::string line(int indent, const std::string& left, const std::string& right) const {
    const auto blanks = static_cast<std::size_t>(indent);
    std::string out = std::string(blanks, ' ') + left;
    if (!right.empty()) out = padded(out, 44) + "  " + right;
    return wrapped(out, blanks + 4);
  }

  // Where `acs` was read: which way a port sends peer-to-peer traffic.
  std::string bridge(int index, int indent) {
    if (!leads_somewhere(index)) return {};
    const Bridge& b = m_.bridges[static_cast<std::size_t>(index)];
    std::string right;
    if (b.kind != BridgeKind::host_bridge) {
      right = b.emulated ? "emulated" : link_text(b.pci.link);
      if (b.pci.acs) right += "  ACS " + b.pci.acs->text();
      if (b.on_card) right += "  on the card";
      if (b.pci.link.degraded() && !b.emulated) right += "  (can do more)";
    }
    std::string out = line(indent, bridge_name(m_, index), right);
    for (std::size_t i = 0; i < m_.bridges.size(); ++i)
      if (m_.bridges[i].pci.parent == index) out += bridge(static_cast<int>(i), indent + 2);
    return out + devices(index, std::nullopt, indent + 2);
  }

  // Devices right below a bridge, or without any bridge at a node.
  std::string devices(std::optional<int> parent, std::optional<int> node, int indent) {
    const auto here = [&](const PciFunction& f) {
      return f.parent == parent && (parent || f.numa == node);
    };
    std::string out;
    for (const Gpu& g : m_.gpus)
      if (here(g.pci)) {
        std::string right = gpu_model(g) + "  " + link_text(g.pci.link);
        const auto& chosen = r_.gpus[static_cast<std::size_t>(g.index)].hca;
        if (chosen) right += "  -> " + m_.hcas[static_cast<std::size_t>(*chosen)].name;
        out += line(indent, gpu_name(g) + " " + g.pci.bus.text(), right);
      }
    for (const Hca& h : m_.hcas) {
      if (h.pci && here(*h.pci))
        out += line(indent, h.name + " " + h.pci->bus.text(),
                    hca_model(h) + "  " + link_text(h.pci->link) + "  " + ports_text(h) +
                        (h.role == HcaRole::management ? "  management" : ""));
      if (h.data_direct && here(*h.data_direct))
        out += line(indent, h.name + " data direct " + h.data_direct->bus.text(),
                    link_text(h.data_direct->link));
    }
    for (const DmaFunction& f : m_.dma_functions)
      if (here(f))
        out += line(indent, "data direct " + f.bus.text(), "of an HCA that no source told");
    return out;
  }

  const Report& r_;
  const Machine& m_;
  std::string out_;
};

}  // namespace

std::string tree_text(const Report& report) { return Tree(report).run(); }

}  // namespace twinpath::tools::topo
