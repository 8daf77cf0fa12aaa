// Writes a Machine as NCCL's topology XML.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "topology/model/distance_rule.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/xml_parser.h"

namespace twinpath {
namespace {

std::string hex(std::uint64_t v, int digits) {
  char out[32];
  std::snprintf(out, sizeof out, "0x%0*llx", digits, static_cast<unsigned long long>(v));
  return out;
}

std::string attribute(const char* key, const std::string& value) {
  return std::string(" ") + key + "=\"" + xml_escaped(value) + "\"";
}

// One <pci> with what hangs below it.
struct Node {
  std::string attributes;
  std::vector<std::string> inner;  // lines without indentation
  std::vector<int> children;       // indices
};

class Writer {
 public:
  explicit Writer(const Machine& machine) : machine_(machine) {}

  std::string run() {
    for (const Gpu& g : machine_.gpus) add_gpu(g);
    for (const Hca& h : machine_.hcas) add_hca(h);
    std::string out = "<system version=\"1\">\n";
    for (const NumaNode& n : machine_.numa_nodes)
      if (n.has_cpus || tops_.contains(n.id)) cpu(n.id, &n, out);
    if (tops_.contains(-1)) cpu(-1, nullptr, out);
    return out + "</system>\n";
  }

 private:
  std::string pci_attributes(const PciFunction& f, std::uint32_t default_class) {
    const std::uint32_t code = f.id.class_code != 0 ? f.id.class_code : default_class;
    std::string s = attribute("busid", f.bus.text()) + attribute("class", hex(code, 6));
    if (f.id.vendor != 0) {
      s += attribute("vendor", hex(f.id.vendor, 4)) + attribute("device", hex(f.id.device, 4)) +
           attribute("subsystem_vendor", hex(f.id.subsystem_vendor, 4)) +
           attribute("subsystem_device", hex(f.id.subsystem_device, 4));
    }
    const PcieLink& l = f.link;
    const auto gts = l.max_gts ? l.max_gts : l.gts;
    const auto width = l.max_width ? l.max_width : l.width;
    if (gts && width) {
      char speed[32];
      std::snprintf(speed, sizeof speed, "%.1f GT/s PCIe", *gts);
      s += attribute("link_speed", speed) + attribute("link_width", std::to_string(*width));
    }
    return s;
  }

  int new_node(std::string attributes) {
    nodes_.push_back({std::move(attributes), {}, {}});
    return static_cast<int>(nodes_.size()) - 1;
  }
  Node& node(int index) { return nodes_[static_cast<std::size_t>(index)]; }

  // The node of a switch, entered with those above it when first asked for.
  int switch_node(const std::vector<int>& switches, std::size_t at, int numa) {
    if (const auto it = switch_of_.find(switches[at]); it != switch_of_.end()) return it->second;
    const Bridge& b = machine_.bridges[static_cast<std::size_t>(switches[at])];
    const int index = new_node(pci_attributes(b.pci, 0x060400));
    switch_of_[switches[at]] = index;
    if (at + 1 < switches.size()) {
      const int above = switch_node(switches, at + 1, numa);
      node(above).children.push_back(index);
    } else {
      tops_[numa].push_back(index);
    }
    return index;
  }

  int device_node(const PciFunction& f, std::uint32_t default_class) {
    if (const auto it = device_of_.find(f.bus); it != device_of_.end()) return it->second;
    const int index = new_node(pci_attributes(f, default_class));
    device_of_[f.bus] = index;
    const int numa = f.numa.value_or(-1);
    const std::vector<int> switches = nccl_switches(machine_, f);
    if (switches.empty()) {
      tops_[numa].push_back(index);
    } else {
      const int above = switch_node(switches, 0, numa);
      node(above).children.push_back(index);
    }
    return index;
  }

  void add_gpu(const Gpu& g) {
    const int at = device_node(g.pci, 0x030200);
    // NCCL takes `dev` as it stands, so the element is written only when the driver told it.
    if (!g.cuda_index) return;
    std::string tag = "<gpu" + attribute("dev", std::to_string(*g.cuda_index));
    if (g.compute_capability) tag += attribute("sm", std::to_string(*g.compute_capability));
    if (g.gdr) tag += attribute("gdr", *g.gdr ? "1" : "0");
    node(at).inner.push_back(tag + "/>");
  }

  void add_net(const PciFunction& f, const Hca& h, const char* ending) {
    const int at = device_node(f, 0x020000);
    // A leaf that has a bus id for a name came from a file without adapters' names.
    if (h.name == f.bus.text()) return;
    for (const HcaPort& p : h.ports) node(at).inner.push_back(net_tag(h, p, ending));
  }

  static std::string net_tag(const Hca& h, const HcaPort& p, const char* ending) {
    std::string tag = "<net" + attribute("name", h.name + ending);
    if (p.gbps) tag += attribute("speed", std::to_string(*p.gbps * 1000));
    tag += attribute("port", std::to_string(p.number));
    if (const auto guid = h.sys_image_guid ? h.sys_image_guid : h.node_guid)
      tag += attribute("guid", hex(*guid, 16));
    return tag + "/>";
  }

  void add_hca(const Hca& h) {
    if (h.role != HcaRole::data) return;
    if (h.data_direct) {
      add_net(*h.data_direct, h, "_dma");
    } else if (h.pci) {
      add_net(*h.pci, h, "");
    } else if (h.numa) {
      std::vector<std::string>& lines = loose_[*h.numa];
      for (const HcaPort& p : h.ports) lines.push_back(net_tag(h, p, ""));
    }
  }

  void cpu(int numa, const NumaNode* n, std::string& out) {
    const CpuModel& m = machine_.host.cpu;
    out += "  <cpu" + attribute("numaid", std::to_string(numa));
    if (n != nullptr && !n->cpus.empty()) out += attribute("affinity", n->cpus);
    if (!m.arch.empty()) out += attribute("arch", m.arch);
    if (!m.vendor.empty()) out += attribute("vendor", m.vendor);
    if (m.arch == "x86_64" && m.family && m.model)
      out += attribute("familyid", std::to_string(*m.family)) +
             attribute("modelid", std::to_string(*m.model));
    out += ">\n";
    for (const int i : tops_[numa]) print(i, 4, out);
    if (const auto loose = loose_.find(numa); loose != loose_.end()) {
      out += "    <nic>\n";
      for (const std::string& line : loose->second) out += "      " + line + "\n";
      out += "    </nic>\n";
    }
    out += "  </cpu>\n";
  }

  void print(int index, int indent, std::string& out) {
    const Node& n = node(index);
    const std::string blank(static_cast<std::size_t>(indent), ' ');
    out += blank + "<pci" + n.attributes;
    if (n.inner.empty() && n.children.empty()) {
      out += "/>\n";
      return;
    }
    out += ">\n";
    bool nic = false;
    for (const std::string& line : n.inner) {
      const bool net = line.starts_with("<net");
      if (net && !nic) out += blank + "  <nic>\n";
      nic = nic || net;
      out += blank + (net ? "    " : "  ") + line + "\n";
    }
    if (nic) out += blank + "  </nic>\n";
    for (const int c : n.children) print(c, indent + 2, out);
    out += blank + "</pci>\n";
  }

  const Machine& machine_;
  std::vector<Node> nodes_;
  std::map<int, int> switch_of_;                   // bridge index to node
  std::map<BusId, int> device_of_;                 // to node
  std::map<int, std::vector<std::string>> loose_;  // nets without a PCI place by NUMA node
  std::map<int, std::vector<int>> tops_;  // NUMA node, -1 unknown, to nodes below its <cpu>
};

}  // namespace

std::string write_nccl_xml(const Machine& machine) { return Writer(machine).run(); }

}  // namespace twinpath
