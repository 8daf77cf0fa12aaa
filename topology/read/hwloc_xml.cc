#include "topology/read/hwloc_xml.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>

#include "plugin/base/text.h"
#include "topology/model/finish.h"
#include "topology/read/cpu_mask.h"
#include "topology/read/hwloc_xml_io.h"
#include "topology/read/io_tree.h"
#include "topology/read/xml_parser.h"

namespace twinpath {
namespace {

constexpr int kMostNode = 65535;           // the kernel's highest number is far below
constexpr std::size_t kMostPlaces = 1024;  // packages, and NUMA nodes

enum class Part { cpu, package, node, memory_cache, io, misc };

std::optional<Part> part_of(const XmlElement& object) {
  constexpr std::pair<std::string_view, Part> kParts[] = {
      {"PU", Part::cpu},        {"Core", Part::cpu},        {"Cache", Part::cpu},
      {"Machine", Part::cpu},   {"System", Part::cpu},      {"Group", Part::cpu},
      {"Die", Part::cpu},       {"Package", Part::package}, {"Socket", Part::package},
      {"NUMANode", Part::node}, {"Node", Part::node},       {"MemCache", Part::memory_cache},
      {"Misc", Part::misc}};
  const std::string_view type = object.attribute("type");
  if (is_hwloc_io(type)) return Part::io;
  const auto it = std::find_if(std::begin(kParts), std::end(kParts),
                               [&](const auto& p) { return p.first == type; });
  if (it != std::end(kParts)) return it->second;
  // L1Cache to L5Cache, L1iCache to L3iCache.
  const bool cache = type.size() >= 7 && type[0] == 'L' && type[1] >= '1' && type[1] <= '5';
  return cache && type.ends_with("Cache") ? std::optional<Part>(Part::cpu) : std::nullopt;
}

std::optional<int> number(std::string_view text) {
  int v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return v;
}

std::string info(const XmlElement& object, std::string_view key) {
  for (const XmlElement& c : object.children)
    if (c.name == "info" && c.attribute("name") == key) return std::string(c.attribute("value"));
  return {};
}

// Of a set of NUMA nodes only this is asked: which one, if it is one.
struct Nodes {
  std::optional<int> one;
  bool several = false;
  void add(const Nodes& o) {
    several = several || o.several || (one && o.one && *one != *o.one);
    if (o.one) one = o.one;
  }
  std::optional<int> only() const { return several ? std::nullopt : one; }
};

class TopologyReader {
 public:
  explicit TopologyReader(std::string& why) : why_(why) {}

  std::optional<Machine> run(const XmlElement& topology) {
    const XmlElement* machine = topology.child("object");
    if (machine == nullptr) {
      why_ = "<topology> has no <object>: nothing is placed in it";
      return std::nullopt;
    }
    read_host(*machine);
    if (!collect(*machine) || !place_nodes(*machine) || !visit(*machine, {})) return std::nullopt;
    enter_io(machine_, places_);
    return std::move(machine_);
  }

 private:
  struct Node {
    NumaNode value;
    CpuMask cpus;
  };

  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }

  void read_host(const XmlElement& machine) {
    HostFacts& h = machine_.host;
    h.hostname = info(machine, "HostName");
    h.kernel = info(machine, "OSRelease");
    h.product = info(machine, "DMIProductName");
    h.vendor = info(machine, "DMISysVendor");
    h.cpu.arch = info(machine, "Architecture");
  }

  std::optional<CpuMask> cpus(const XmlElement& object) {
    const auto mask = CpuMask::parse(object.attribute("cpuset"));
    if (!mask)
      why_ = std::string(object.attribute("type")) + " has the cpuset " +
             quoted(object.attribute("cpuset")) + ", which is no set of CPUs";
    return mask;
  }

  // NUMA nodes and packages, in the order of the file, and which nodes lie below each object.
  bool collect(const XmlElement& object) {
    const auto part = part_of(object);
    if (!part) return refuse(quoted(object.attribute("type")) + " is no type of object");
    if (*part == Part::io) return true;
    if (*part == Part::node && !node(object)) return false;
    if (*part == Part::package && !package(object)) return false;
    Nodes below = *part == Part::node ? below_[&object] : Nodes();
    for (const XmlElement& c : object.children) {
      if (c.name != "object") continue;
      if (!collect(c)) return false;
      if (const auto it = below_.find(&c); it != below_.end()) below.add(it->second);
    }
    below_[&object] = below;
    return true;
  }

  bool node(const XmlElement& object) {
    const auto id = number(object.attribute("os_index"));
    if (!id || *id < 0 || *id > kMostNode)
      return refuse("a NUMANode has the os_index " + quoted(object.attribute("os_index")));
    if (!numbers_.insert(*id).second)
      return refuse("NUMANode " + std::to_string(*id) + " stands twice");
    if (nodes_.size() == kMostPlaces) return refuse("too many NUMA nodes");
    const auto mask = cpus(object);
    if (!mask) return false;
    NumaNode value;
    value.id = *id;
    value.has_cpus = !mask->empty();
    // Memory without CPUs is no place for a device.
    if (value.has_cpus) below_[&object].one = *id;
    nodes_.push_back({std::move(value), *mask});
    return true;
  }

  bool package(const XmlElement& object) {
    if (packages_.size() == kMostPlaces) return refuse("too many packages");
    const auto mask = cpus(object);
    if (!mask) return false;
    machine_.packages.push_back({static_cast<int>(packages_.size())});
    packages_.push_back(*mask);
    if (packages_.size() > 1) return true;
    CpuModel& c = machine_.host.cpu;
    c.vendor = info(object, "CPUVendor");
    c.name = info(object, "CPUModel");
    c.family = number(info(object, "CPUFamilyNumber"));
    c.model = number(info(object, "CPUModelNumber"));
    return true;
  }

  bool place_nodes(const XmlElement& machine) {
    if (nodes_.empty()) {
      // A machine without NUMA is one node.
      const auto mask = cpus(machine);
      if (!mask) return false;
      nodes_.push_back({NumaNode(), *mask});
      below_[&machine].one = 0;
    }
    for (Node& n : nodes_) {
      for (std::size_t p = 0; p < packages_.size(); ++p)
        if (n.value.has_cpus && n.cpus.within(packages_[p])) n.value.package = static_cast<int>(p);
      machine_.numa_nodes.push_back(n.value);
    }
    return true;
  }

  // Version 2 hangs the memory of a place beside its CPUs: such a node holds for the whole place.
  // In version 1 a node with CPUs has them below it.
  bool holds_for_all(const XmlElement& object) const {
    const auto part = part_of(object);
    return part == Part::memory_cache ||
           (part == Part::node &&
            std::none_of(object.children.begin(), object.children.end(), [](const XmlElement& c) {
              return c.name == "object" && part_of(c) != Part::misc;
            }));
  }

  // Goes through the CPU part of the tree; the nodes of `around` hold for all below.
  bool visit(const XmlElement& object, Nodes around) {
    if (part_of(object) == Part::node) {
      for (const Node& n : nodes_)
        if (n.value.has_cpus && number(object.attribute("os_index")) == n.value.id)
          around.add({n.value.id, false});
    }
    for (const XmlElement& c : object.children)
      if (c.name == "object" && holds_for_all(c)) around.add(below_[&c]);
    Nodes here = around;
    here.add(below_[&object]);
    IoPlace place{here.only(), {}};
    for (const XmlElement& c : object.children)
      if (c.name == "object" && part_of(c) == Part::io && !read_hwloc_io(c, place.objects, why_))
        return false;
    if (!place.objects.empty()) places_.push_back(std::move(place));
    for (const XmlElement& c : object.children)
      if (c.name == "object" && part_of(c) != Part::io && !visit(c, around)) return false;
    return true;
  }

  std::string& why_;
  Machine machine_;
  std::set<int> numbers_;
  std::vector<Node> nodes_;
  std::vector<CpuMask> packages_;
  std::map<const XmlElement*, Nodes> below_;
  std::vector<IoPlace> places_;
};

// What the parser would say less well.
bool readable(std::string_view text, std::string& why) {
  if (text.find("<topology") == std::string_view::npos) {
    why = "this is not an hwloc topology";
    if (text.find("<system") != std::string_view::npos) why += "; it looks like NCCL's";
  } else if (text.find("</topology>") == std::string_view::npos) {
    why = "this hwloc topology is cut off; export it again";
  }
  return why.empty();
}

}  // namespace

std::optional<Machine> parse_hwloc_xml(std::string_view text, std::string& why) {
  why.clear();
  if (!readable(text, why)) return std::nullopt;
  const auto root = parse_xml(text, why);
  if (!root) return std::nullopt;
  if (root->name != "topology") {
    why = "this is not an hwloc topology: the root element is <" + root->name + ">";
    return std::nullopt;
  }
  // Version 1 does not always name itself.
  const std::string_view version = root->attribute("version");
  if (!version.empty() && !version.starts_with("1.") && !version.starts_with("2.")) {
    why = "hwloc XML of version " + quoted(version) +
          " cannot be read; write it with `lstopo --export-xml-flags v2` or an hwloc 2 release";
    return std::nullopt;
  }
  auto machine = TopologyReader(why).run(*root);
  if (!machine) return std::nullopt;
  finish_machine(*machine);
  why = check_machine(*machine);
  if (!why.empty()) return std::nullopt;
  machine->sources.push_back("hwloc-xml");
  return machine;
}

std::optional<Machine> read_hwloc_xml(const std::string& path, std::string& why) {
  auto text = read_xml_file(path, why);
  if (!text) return std::nullopt;
  auto machine = parse_hwloc_xml(std::move(*text), why);
  if (!machine) {
    why = path + ": " + why;
    return std::nullopt;
  }
  machine->sources.back() += " " + path;
  return machine;
}

}  // namespace twinpath
