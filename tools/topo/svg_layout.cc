#include "tools/topo/svg_layout.h"

#include <algorithm>

#include "tools/topo/acs.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

constexpr double kGap = 10;
constexpr double kPad = 8;
constexpr double kRoomForCurves = 20;  // below each line of devices
constexpr double kMostWidth = 1500;

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
    const auto v = f.link.now();
    return v ? "PCIe " + number(*v, *v < 10 ? 1 : 0) + " GB/s" : "PCIe rate not known";
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
    box.title = gpu_name(g) + "  " + g.pci.bus.text();
    box.detail = rate(g.pci);
    link_problem(g.pci, true, box);
    if (g.gdr == false) box.problems.emplace_back("no GPUDirect RDMA");
    if (!r_.gpus[static_cast<std::size_t>(g.index)].hca && !m_.hcas.empty())
      box.problems.emplace_back("no usable HCA");
    return box;
  }

  Box hca(int index) const {
    const Hca& h = m_.hcas[static_cast<std::size_t>(index)];
    Box box;
    const bool used = std::none_of(r_.left_out.begin(), r_.left_out.end(), [&](const LeftOut& l) {
      return l.hca == index && l.reason != Reason::port_down;
    });
    box.kind = used ? Box::Kind::hca : Box::Kind::management;
    box.index = index;
    box.title = h.name;
    const std::string port = rates_text(h);
    box.detail = (port == "?" ? "" : port + " Gb/s, ") + (h.pci ? rate(*h.pci) : "no PCIe place");
    if (box.kind == Box::Kind::management) return box;
    if (h.pci) link_problem(*h.pci, false, box);
    if (!any_port_active(h)) box.problems.emplace_back("no active port");
    return box;
  }

  Box dma(const PciFunction& f, int hca_index) const {
    Box box;
    box.kind = Box::Kind::dma;
    box.index = hca_index;
    box.title = hca_index < 0 ? "data direct"
                              : m_.hcas[static_cast<std::size_t>(hca_index)].name + " data direct";
    box.detail = rate(f);
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

bool is_device(const Box& b) { return b.kind >= Box::Kind::gpu; }

double text_width(const std::string& s) { return static_cast<double>(s.size()) * 6.3 + 2 * kPad; }
constexpr double kLeastWidth = 760;  // of the picture: the legend

// Sizes from the inside out; children in lines of at most `most` wide, device beside device.
void measure(Box& box, double most) {
  if (is_device(box)) {
    box.width = std::max({kDeviceWidth, text_width(box.title), text_width(box.detail) * 0.86});
    box.height = 36 + 12 * static_cast<double>(box.problems.size());
    return;
  }
  for (Box& c : box.children) measure(c, most - 2 * kPad);
  double x = kPad, y = kTitleHeight + 6 + 12 * static_cast<double>(box.problems.size());
  double tallest = 0, widest = text_width(box.title);
  int in_line = 0;
  bool devices = false;
  const auto end_line = [&] {
    y += tallest + (devices ? kRoomForCurves : kGap);
    x = kPad;
    tallest = 0;
    in_line = 0;
    devices = false;
  };
  const bool row = box.kind == Box::Kind::row;
  for (Box& c : box.children) {
    const bool full = x + c.width + kPad > most || (!row && in_line == box.per_line);
    const bool other = in_line > 0 && !row && is_device(c) != devices;
    if (in_line > 0 && (full || other)) end_line();
    c.x = x;
    c.y = y;
    x += c.width + kGap;
    widest = std::max(widest, c.x + c.width + kPad);
    tallest = std::max(tallest, c.height);
    devices = devices || is_device(c);
    ++in_line;
  }
  if (in_line > 0) end_line();
  box.width = widest;
  box.height = y;
}

void move_by(Box& box, double dx, double dy) {
  box.x += dx;
  box.y += dy;
  for (Box& c : box.children) move_by(c, box.x, box.y);
}

}  // namespace

Layout lay_out(const Report& report, double top) {
  Layout layout;
  layout.width = kLeastWidth;
  layout.rows = Builder(report).rows();
  double y = top;
  for (Box& row : layout.rows) {
    measure(row, kMostWidth);
    row.x = 0;
    row.y = 0;
    move_by(row, 16, y);
    y = row.bottom() + 24;
    layout.width = std::max(layout.width, row.x + row.width + 16);
  }
  // Rows are equally wide, so that their frames line up.
  for (Box& row : layout.rows) row.width = layout.width - 32;
  layout.height = y;
  return layout;
}

}  // namespace twinpath::tools::topo
