#include <algorithm>
#include <map>
#include <string_view>

#include "tools/topo/acs.h"
#include "tools/topo/names.h"
#include "tools/topo/svg_layout.h"

namespace twinpath::tools::topo {
namespace {

class Builder {
 public:
  explicit Builder(const Report& report) : r_(report), m_(report.machine) {}

  std::vector<Box> rows() {
    std::vector<Box> out;
    std::vector<std::optional<int>> nodes;
    for (const NumaNode& n : m_.numa_nodes) nodes.emplace_back(n.id);
    nodes.emplace_back(std::nullopt);
    for (const auto& node : nodes) {
      Box row;
      row.kind = Box::Kind::row;
      row.index = node.value_or(-1);
      row.title = node ? "NUMA node " + std::to_string(*node) : "NUMA node not told";
      const NumaNode* n = node ? m_.numa_node(*node) : nullptr;
      if (n != nullptr && n->package) row.title += ", socket " + std::to_string(*n->package);
      for (std::size_t i = 0; i < m_.bridges.size(); ++i) {
        const int b = static_cast<int>(i);
        if (m_.bridges[i].pci.parent) continue;
        Box box = bridge(b);
        if (!box.children.empty() && node_of(b) == node) row.children.push_back(std::move(box));
      }
      devices(std::nullopt, row.children, node);
      row.children = beside_their_functions(std::move(row.children));
      if (!row.children.empty()) out.push_back(std::move(row));
    }
    Box row;
    row.title = "not on PCIe";
    for (std::size_t i = 0; i < m_.hcas.size(); ++i)
      if (m_.hcas[i].data_path() == nullptr) row.children.push_back(hca(static_cast<int>(i)));
    if (!row.children.empty()) out.push_back(std::move(row));
    return out;
  }

 private:
  // The node of the first device below a bridge that tells one.
  std::optional<int> node_of(int b) const {
    std::optional<int> found;
    const auto look = [&](const PciFunction& f) {
      const auto up = ancestors(m_, f.parent);
      if (!found && std::find(up.begin(), up.end(), b) != up.end()) found = f.numa;
    };
    for (const Gpu& g : m_.gpus) look(g.pci);
    for (const Hca& h : m_.hcas) {
      if (h.pci) look(*h.pci);
      if (h.data_direct) look(*h.data_direct);
    }
    if (found && m_.numa_node(*found) == nullptr) found.reset();
    return found;
  }

  // HCAs whose device or data-direct function lies somewhere in a box.
  static void indices(const Box& box, Box::Kind kind, std::vector<int>& out) {
    if (box.kind == kind && box.index >= 0) out.push_back(box.index);
    for (const Box& c : box.children) indices(c, kind, out);
  }
  // Host bridges of physical functions right after those of their data-direct functions: the lines
  // between them are short then.
  static std::vector<Box> beside_their_functions(std::vector<Box> boxes) {
    std::vector<Box> out;
    std::vector<bool> placed(boxes.size(), false);
    const auto has = [&](const Box& box, Box::Kind kind, const std::vector<int>& wanted) {
      std::vector<int> own;
      indices(box, kind, own);
      return std::find_first_of(own.begin(), own.end(), wanted.begin(), wanted.end()) != own.end();
    };
    std::vector<int> direct;  // all of this row
    for (const Box& b : boxes) indices(b, Box::Kind::dma, direct);
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      std::vector<int> own;
      indices(boxes[i], Box::Kind::dma, own);
      // Those that wait for their function are taken with it.
      if (placed[i] || (own.empty() && has(boxes[i], Box::Kind::hca, direct))) continue;
      placed[i] = true;
      out.push_back(boxes[i]);
      for (std::size_t k = 0; k < boxes.size(); ++k) {
        if (placed[k] || !has(boxes[k], Box::Kind::hca, own)) continue;
        placed[k] = true;
        out.push_back(boxes[k]);
      }
    }
    for (std::size_t i = 0; i < boxes.size(); ++i)
      if (!placed[i]) out.push_back(std::move(boxes[i]));
    return out;
  }

  static std::string rate(const PciFunction& f) {
    return f.link.now() ? link_text(f.link) : "PCIe rate not known";
  }
  // What tells models apart: "H200 SXM 141GB" of "NVIDIA GH100 [H200 SXM 141GB]".
  static std::string short_model(const std::string& model) {
    constexpr std::string_view kVendor = "NVIDIA ";
    const std::size_t open = model.find('['), close = model.rfind(']');
    if (open != std::string::npos && close != std::string::npos && open + 1 < close)
      return model.substr(open + 1, close - open - 1);
    return model.rfind(kVendor, 0) == 0 ? model.substr(kVendor.size()) : model;
  }
  static std::string with_model(const std::string& name, const std::string& model) {
    return model.empty() || model == "other" || model == "GPU" ? name : name + "  " + model;
  }

  // The HCA of a GPU, the class of the way there and what this version does with it.
  void tag_gpu(const GpuReport& g, Box& box) const {
    if (!g.hca) return;
    const PairReport& p = r_.pair(g.gpu, *g.hca);
    const auto& name = m_.hcas[static_cast<std::size_t>(*g.hca)].name;
    box.rail = *g.hca;
    box.far = p.distance() > Distance::c2c;
    box.tag = name + "  " + class_text(p) + "  " +
              (p.host_runs.mode ? std::string(name_of(*p.host_runs.mode)) : "not used");
    std::vector<std::string> equals;
    for (const int e : g.equals) equals.push_back(m_.hcas[static_cast<std::size_t>(e)].name);
    if (!equals.empty()) box.details.push_back("as near: " + few_names(equals));
  }
  static std::string few_names(const std::vector<std::string>& names) {
    if (names.size() <= 2) return joined(names, ", ");
    return names[0] + " and " + std::to_string(names.size() - 1) + " more";
  }
  void tag_hca(int index, Box& box) const {
    std::vector<std::string> gpus;
    for (const GpuReport& g : r_.gpus)
      if (g.hca == index) gpus.push_back(gpu_name(m_.gpus[static_cast<std::size_t>(g.gpu)]));
    if (gpus.empty()) return;
    box.rail = index;
    box.tag = gpus.size() > 4 ? std::to_string(gpus.size()) + " GPUs" : joined(gpus, ", ");
  }
  void link_problem(const PciFunction& f, bool gpu, Box& box) const {
    const PcieLink& l = f.link;
    if (m_.host.virtual_machine == true || !l.degraded()) return;
    if (gpu && *l.width == *l.max_width) return;  // a GPU at rest
    box.problems.push_back(generation(*l.gts) + " x" + std::to_string(*l.width) + " of " +
                           generation(*l.max_gts) + " x" + std::to_string(*l.max_width));
  }

  Box gpu(const Gpu& g) const {
    Box box;
    box.kind = Box::Kind::gpu;
    box.index = g.index;
    box.title = with_model(gpu_name(g), short_model(gpu_model(g)));
    box.details = {g.pci.bus.text(), rate(g.pci)};
    if (g.nvlinks)
      box.details.push_back(std::to_string(*g.nvlinks) + (g.amd ? " XGMI" : " NVLinks"));
    if (g.c2c_node) box.details.push_back("NVLink-C2C to node " + std::to_string(*g.c2c_node));
    tag_gpu(r_.gpus[static_cast<std::size_t>(g.index)], box);
    link_problem(g.pci, true, box);
    if (g.gdr == false) box.problems.emplace_back("no GPUDirect RDMA");
    if (!served(g))
      box.problems.emplace_back("this version serves no AMD GPUs");
    else if (!r_.gpus[static_cast<std::size_t>(g.index)].hca)
      no_hca(box);
    return box;
  }

  // Why a GPU has no HCA, in as few words as a box has room for.
  void no_hca(Box& box) const {
    if (m_.hcas.empty()) return;  // said once, below the picture
    box.problems.emplace_back("no usable HCA:");
    std::map<std::string, int> causes;
    for (const LeftOut& l : r_.left_out) ++causes[short_cause(l)];
    for (const auto& [cause, count] : causes)
      box.problems.push_back((count > 1 ? std::to_string(count) + " x " : "") + cause);
  }
  std::string short_cause(const LeftOut& l) const {
    switch (l.reason) {
      case Reason::hca_transport:
        return m_.hcas[static_cast<std::size_t>(l.hca)].foreign + ", not InfiniBand or RoCE";
      case Reason::mgmt_nic:
        return "management adapter";
      case Reason::port_down:
        return "no active port";
      case Reason::hca_excluded:
        return "left out by the platform file";
      default:
        return std::string(code_of(l.reason));
    }
  }

  Box hca(int index) const {
    const Hca& h = m_.hcas[static_cast<std::size_t>(index)];
    Box box;
    const auto left = std::find_if(r_.left_out.begin(), r_.left_out.end(), [&](const LeftOut& l) {
      return l.hca == index && l.reason != Reason::port_down;
    });
    box.kind = left == r_.left_out.end() ? Box::Kind::hca : Box::Kind::management;
    box.index = index;
    box.title = with_model(h.name, short_model(hca_model(h)));
    if (h.pci && h.name != h.pci->bus.text()) box.details.push_back(h.pci->bus.text());
    const std::string port = rates_text(h);
    if (port != "?") box.details.push_back(port + " Gb/s");
    box.details.push_back(h.pci ? rate(*h.pci) : "no PCIe place");
    tag_hca(index, box);
    if (box.kind == Box::Kind::management) {
      box.details.push_back(short_cause(*left));
      return box;
    }
    if (h.pci) link_problem(*h.pci, false, box);
    if (!any_port_active(h)) box.problems.emplace_back("no active port");
    return box;
  }

  Box dma(const PciFunction& f, int hca_index) const {
    Box box;
    box.kind = Box::Kind::dma;
    box.index = hca_index;
    box.title = hca_index < 0 ? "data direct, HCA not told"
                              : m_.hcas[static_cast<std::size_t>(hca_index)].name + " data direct";
    box.details = {f.bus.text(), rate(f)};
    if (hca_index >= 0) tag_hca(hca_index, box);
    return box;
  }

  // Devices right below a bridge (or, without one, at a NUMA node).
  void devices(std::optional<int> parent, std::vector<Box>& out,
               std::optional<int> node = std::nullopt) const {
    const auto here = [&](const PciFunction& f) {
      return f.parent == parent && (parent || f.numa == node);
    };
    for (const Gpu& g : m_.gpus)
      if (here(g.pci)) out.push_back(gpu(g));
    for (std::size_t i = 0; i < m_.hcas.size(); ++i) {
      const Hca& h = m_.hcas[i];
      if (h.pci && here(*h.pci)) out.push_back(hca(static_cast<int>(i)));
      if (h.data_direct && here(*h.data_direct))
        out.push_back(dma(*h.data_direct, static_cast<int>(i)));
    }
    for (const DmaFunction& f : m_.dma_functions)
      if (here(f)) out.push_back(dma(f, -1));
  }

  void below(int index, std::vector<Box>& out) const {
    devices(index, out);
    for (std::size_t i = 0; i < m_.bridges.size(); ++i) {
      if (m_.bridges[i].pci.parent != index) continue;
      const int b = static_cast<int>(i);
      if (is_switch(b)) {
        Box box = bridge(b);
        if (!box.children.empty()) out.push_back(std::move(box));
      } else {
        below(b, out);
      }
    }
  }
  bool is_switch(int b) const {
    const Bridge& bridge = m_.bridges[static_cast<std::size_t>(b)];
    return bridge.folded || bridge.kind == BridgeKind::upstream;
  }

  Box bridge(int b) const {
    const Bridge& bridge = m_.bridges[static_cast<std::size_t>(b)];
    Box box;
    box.kind = bridge.kind == BridgeKind::host_bridge ? Box::Kind::host : Box::Kind::bridge;
    box.index = b;
    box.title = bridge_name(m_, b);
    below(b, box.children);
    if (box.kind == Box::Kind::bridge) acs_problem(b, box);
    return box;
  }

  // ACS that turns a GPU's way to its HCA away at this switch.
  void acs_problem(int b, Box& box) const {
    for (const GpuReport& g : r_.gpus) {
      if (!g.hca || r_.pair(g.gpu, *g.hca).relation.lca != b) continue;
      const AcsView acs = acs_view(m_, m_.gpus[static_cast<std::size_t>(g.gpu)],
                                   m_.hcas[static_cast<std::size_t>(*g.hca)]);
      if (acs.verdict != Verdict::bad) continue;
      box.problems.emplace_back("ACS redirects peer-to-peer");
      return;
    }
  }

  const Report& r_;
  const Machine& m_;
};

}  // namespace

std::vector<Box> boxes_of(const Report& report) { return Builder(report).rows(); }

}  // namespace twinpath::tools::topo
