#include "topology/read/nccl_xml.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plugin/base/text.h"
#include "topology/model/finish.h"
#include "topology/model/pci_ids.h"
#include "topology/read/guid.h"
#include "topology/read/sysfs_reader.h"
#include "topology/read/xml_parser.h"

namespace twinpath {
namespace {

// As NCCL reads them (strtol with base 0, src/graph/xml.h).
template <class T>
std::optional<T> number(std::string_view text) {
  const auto value = parse_integer(text);
  if (!value || !std::in_range<T>(*value)) return std::nullopt;
  return static_cast<T>(*value);
}

// Where NCCL writes -1 for what it does not know (src/graph/xml.cc: a GPU that no rank has).
std::optional<int> natural(std::string_view text) {
  const auto value = number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

PciId read_id(const XmlElement& pci) {
  auto id16 = [&](const char* key) {
    return static_cast<std::uint16_t>(number<std::uint32_t>(pci.attribute(key)).value_or(0) &
                                      0xffff);
  };
  PciId id;
  id.vendor = id16("vendor");
  id.device = id16("device");
  id.subsystem_vendor = id16("subsystem_vendor");
  id.subsystem_device = id16("subsystem_device");
  id.class_code = number<std::uint32_t>(pci.attribute("class")).value_or(0) & 0xffffff;
  return id;
}

// Fills one Machine from the <cpu> elements of one host.
class HostReader {
 public:
  Machine machine;

  // `numa`: the number of the <cpu>, or one that is free where it has none.
  bool cpu(const XmlElement& cpu, int numa, bool assumed, std::string& why) {
    numa_ = numa;
    if (machine.numa_node(numa) == nullptr) {
      NumaNode node;
      node.id = numa;
      node.cpus = cpu.attribute("affinity");
      node.assumed = assumed;
      machine.numa_nodes.push_back(std::move(node));
    }
    CpuModel& model = machine.host.cpu;
    model.arch = cpu.attribute("arch");
    model.vendor = cpu.attribute("vendor");
    model.family = number<int>(cpu.attribute("familyid"));
    model.model = number<int>(cpu.attribute("modelid"));
    // The file has no host bridges.  Those of one PCI domain are taken for one, as NCCL does; what
    // lies in different domains has none in common.
    std::map<std::uint32_t, int> hosts;  // by domain, to bridges
    for (const XmlElement& c : cpu.children) {
      if (c.name == "nic") nets(c, nullptr);  // an adapter without a PCI place
      if (c.name != "pci") continue;
      const BusId bus = parse_bus_id(c.attribute("busid")).value_or(BusId{});
      const auto [it, first] = hosts.emplace(bus.domain, static_cast<int>(machine.bridges.size()));
      if (first) {
        Bridge host;
        host.kind = BridgeKind::host_bridge;
        host.pci.numa = numa_;
        host.pci.bus = {bus.domain, bus.bus, 0, 0};
        machine.bridges.push_back(std::move(host));
      }
      if (!pci(c, it->second, why)) return false;
    }
    return true;
  }

 private:
  bool children(const XmlElement& parent, int bridge, std::string& why) {
    for (const XmlElement& c : parent.children) {
      if (c.name == "pci" && !pci(c, bridge, why)) return false;
      if (c.name == "nic") nets(c, nullptr);  // an adapter without a PCI place
    }
    return true;
  }

  bool pci(const XmlElement& pci, int parent, std::string& why) {
    const auto bus = parse_bus_id(pci.attribute("busid"));
    if (!bus) {
      why = quoted(pci.attribute("busid")) + " is not a PCI address";
      return false;
    }
    PciFunction f;
    f.bus = *bus;
    f.id = read_id(pci);
    f.parent = parent;
    f.numa = numa_;
    f.link.gts = parse_link_speed(std::string(pci.attribute("link_speed")));
    const auto width = number<int>(pci.attribute("link_width"));
    if (width && *width > 0 && *width <= 32) f.link.width = width;
    const bool network =
        f.id.class_code >> 16 == 0x02 || is_dma_function(f.id) || f.id.class_code >> 8 == 0x0801;
    const std::uint32_t base = f.id.class_code >> 16;
    if (pci.child("gpu") != nullptr || base == 0x03 || base == 0x12) {
      gpu(pci, std::move(f));
    } else if (const XmlElement* nic = pci.child("nic")) {
      nets(*nic, &f);
    } else if (network) {
      Hca hca;
      hca.name = f.bus.text();
      place(hca, f);
      machine.hcas.push_back(std::move(hca));
    } else if (is_bridge(f.id) || pci.child("pci") != nullptr) {
      Bridge b;
      b.kind = BridgeKind::upstream;
      b.folded = true;
      b.emulated = f.bus.domain == 0xffff;  // how providers write switches that the guest lacks
      b.secondary_bus = f.bus.bus;
      b.pci = std::move(f);
      const int index = static_cast<int>(machine.bridges.size());
      machine.bridges.push_back(std::move(b));
      return children(pci, index, why);
    } else {
      machine.unnamed.push_back(std::move(f));
    }
    return true;
  }

  void gpu(const XmlElement& pci, PciFunction f) {
    Gpu out;
    if (const XmlElement* e = pci.child("gpu")) {
      out.cuda_index = natural(e->attribute("dev"));
      // RCCL's files have no compute capability; its "sm" is another number.
      if (e->attribute("gcn").empty()) out.compute_capability = natural(e->attribute("sm"));
      if (const auto gdr = number<int>(e->attribute("gdr"))) out.gdr = *gdr != 0;
      int links = 0;
      for (const XmlElement& l : e->children)
        if (l.name == "nvlink" || l.name == "xgmi")
          links += std::clamp(number<int>(l.attribute("count")).value_or(0), 0, 1024);
      out.nvlinks = links;
      if (e->child("c2c") != nullptr) out.c2c_node = numa_;
      out.amd = !e->attribute("gcn").empty() || e->child("xgmi") != nullptr;
    }
    out.pci = std::move(f);
    // The element says what it is; a class that says otherwise would make a bridge of it elsewhere.
    const std::uint32_t base = out.pci.id.class_code >> 16;
    if (base != 0x03 && base != 0x12) out.pci.id.class_code = 0x030200;
    machine.gpus.push_back(std::move(out));
  }

  static void place(Hca& hca, const PciFunction& f) {
    if (f.id.class_code >> 8 == 0x0801) {
      hca.data_direct = f;
      hca.kind = HcaKind::mlx5;
    } else {
      hca.pci = f;
      hca.kind = hca_kind(f.id);
      hca.foreign = foreign_transport(f.id);
    }
  }

  void nets(const XmlElement& nic, const PciFunction* f) {
    bool any = false;
    for (const XmlElement& net : nic.children) {
      if (net.name != "net") continue;
      any = true;
      std::string name(net.attribute("name"));
      if (name.ends_with("_dma")) name.resize(name.size() - 4);
      if (name.empty()) name = f == nullptr ? "net" : f->bus.text();
      Hca* hca = machine.find_hca(name);
      // The same name again is another port or the other function of one adapter.
      if (hca == nullptr) {
        machine.hcas.emplace_back();
        hca = &machine.hcas.back();
        hca->name = name;
        if (name.starts_with("mlx5")) hca->kind = HcaKind::mlx5;
      }
      if (f != nullptr) {
        place(*hca, *f);
      } else if (hca->data_path() == nullptr) {
        hca->numa = numa_;
      }
      if (!hca->node_guid) hca->node_guid = parse_guid(net.attribute("guid"));
      port(*hca, net);
    }
    if (!any && f != nullptr) {
      Hca hca;
      hca.name = f->bus.text();
      place(hca, *f);
      machine.hcas.push_back(std::move(hca));
    }
  }

  static void port(Hca& hca, const XmlElement& net) {
    HcaPort p;
    p.number = number<int>(net.attribute("port")).value_or(1);
    if (p.number < 1 || p.number > 255) p.number = 1;
    if (const auto mbits = number<int>(net.attribute("speed")); mbits && *mbits > 0)
      p.gbps = *mbits / 1000;
    const bool known = std::any_of(hca.ports.begin(), hca.ports.end(),
                                   [&](const HcaPort& o) { return o.number == p.number; });
    if (!known) hca.ports.push_back(std::move(p));
  }

  std::optional<int> numa_;
};

// The node GUID of NCCL is that of the card: devices of two ports share it.  It serves as the
// image GUID and says nothing about a mistake.
void guids_are_cards(Machine& machine) {
  for (Hca& h : machine.hcas) {
    h.sys_image_guid = h.node_guid;
    h.node_guid.reset();
  }
}

// The NUMA node of a <cpu>; nothing where the file does not tell, as the kernel of a machine with
// one node may not (-1).
bool read_numa(const XmlElement& cpu, std::optional<int>& numa, std::string& why) {
  const std::string_view text = trimmed(cpu.attribute("numaid"));
  numa = number<int>(text);
  if (!numa && !text.empty()) {
    why = "the numaid " + quoted(text) + " of a <cpu> is no number";
    return false;
  }
  if (numa && *numa < 0) numa.reset();
  return true;
}

// What hangs on one <cpu> is at one place, and no other is: a number that no other <cpu> has.
int free_number(std::set<int>& taken) {
  int n = 0;
  while (taken.contains(n)) ++n;
  taken.insert(n);
  return n;
}

}  // namespace

std::optional<std::vector<Machine>> parse_nccl_xml(std::string_view text, std::string& why) {
  const auto root = parse_xml(text, why);
  if (!root) return std::nullopt;
  if (root->name != "system") {
    why = "this is not a topology of NCCL: the root element is <" + root->name +
          ">, expected <system>";
    if (root->name == "topology") why += "; it looks like hwloc's";
    return std::nullopt;
  }
  std::vector<std::string> hosts;
  std::vector<HostReader> readers;
  std::set<int> taken;
  for (const XmlElement& cpu : root->children) {
    std::optional<int> numa;
    if (cpu.name == "cpu" && !read_numa(cpu, numa, why)) return std::nullopt;
    if (numa) taken.insert(*numa);
  }
  for (const XmlElement& cpu : root->children) {
    if (cpu.name != "cpu") continue;
    const std::string host(cpu.attribute("host_hash"));
    auto it = std::find(hosts.begin(), hosts.end(), host);
    if (it == hosts.end()) {
      hosts.push_back(host);
      readers.emplace_back();
      it = hosts.end() - 1;
    }
    std::optional<int> told;
    (void)read_numa(cpu, told, why);
    const int numa = told ? *told : free_number(taken);
    HostReader& reader = readers[static_cast<std::size_t>(it - hosts.begin())];
    if (!reader.cpu(cpu, numa, !told, why)) return std::nullopt;
  }
  if (readers.empty()) {
    why = "<system> has no <cpu>: nothing is placed in it";
    return std::nullopt;
  }
  std::vector<Machine> machines;
  for (HostReader& r : readers) {
    guids_are_cards(r.machine);
    r.machine.sources.push_back("nccl-xml");
    finish_machine(r.machine);
    why = check_machine(r.machine);
    if (!why.empty()) return std::nullopt;
    machines.push_back(std::move(r.machine));
  }
  return machines;
}

std::optional<std::vector<Machine>> read_nccl_xml(const std::string& path, std::string& why) {
  auto text = read_xml_file(path, why);
  if (!text) return std::nullopt;
  auto machines = parse_nccl_xml(std::move(*text), why);
  if (!machines) {
    why = path + ": " + why;
    return std::nullopt;
  }
  for (Machine& m : *machines) m.sources.back() += " " + path;
  return machines;
}

}  // namespace twinpath
