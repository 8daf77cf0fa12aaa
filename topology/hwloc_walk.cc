#include "topology/hwloc_walk.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "topology/guid.h"
#include "topology/pci_ids.h"

namespace twinpath {
namespace {

std::string info(const hwloc_obj* object, const char* name) {
  for (unsigned i = 0; i < object->infos_count; ++i)
    if (std::strcmp(object->infos[i].name, name) == 0) return object->infos[i].value;
  return {};
}

std::optional<int> number(const std::string& text) {
  int v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return v;
}

// Walks a loaded topology once and fills a Machine.
class Walk {
 public:
  Walk(const HwlocLibrary& library, hwloc_topology_t topology)
      : library_(library), topology_(topology) {}

  Machine run() {
    const hwloc_obj* root = library_.get_obj_by_depth(topology_, 0, 0);
    read_host(root);
    read_numa();
    visit(root);
    machine_.sources.push_back(library_.version);
    return std::move(machine_);
  }

 private:
  void read_host(const hwloc_obj* root);
  void read_numa();
  void visit(const hwloc_obj* object);
  void visit_io(const hwloc_obj* object, std::optional<int> numa);
  void add_os_device(const hwloc_obj* object);
  std::optional<int> bridge_index(const hwloc_obj* object, std::optional<int> numa);
  std::optional<int> node_of(const hwloc_obj* object) const;
  PciFunction function(const hwloc_obj* device, std::optional<int> numa);

  const HwlocLibrary& library_;
  hwloc_topology_t topology_;
  Machine machine_;
  std::map<const hwloc_obj*, int> bridge_of_;
  std::map<const hwloc_obj*, std::optional<int>> numa_of_;  // of PCI devices seen
};

void Walk::read_host(const hwloc_obj* root) {
  HostFacts& h = machine_.host;
  h.hostname = info(root, "HostName");
  h.kernel = info(root, "OSRelease");
  h.product = info(root, "DMIProductName");
  h.vendor = info(root, "DMISysVendor");
  h.cpu.arch = info(root, "Architecture");
  const int depth = library_.get_type_depth(topology_, HWLOC_OBJ_PACKAGE);
  if (depth < 0) return;
  const unsigned count = library_.get_nbobjs_by_depth(topology_, depth);
  for (unsigned i = 0; i < count; ++i) {
    const hwloc_obj* package = library_.get_obj_by_depth(topology_, depth, i);
    machine_.packages.push_back({static_cast<int>(package->logical_index)});
    if (i != 0) continue;
    h.cpu.vendor = info(package, "CPUVendor");
    h.cpu.name = info(package, "CPUModel");
    h.cpu.family = number(info(package, "CPUFamilyNumber"));
    h.cpu.model = number(info(package, "CPUModelNumber"));
  }
}

void Walk::read_numa() {
  const int packages = library_.get_type_depth(topology_, HWLOC_OBJ_PACKAGE);
  const unsigned count = library_.get_nbobjs_by_depth(topology_, HWLOC_TYPE_DEPTH_NUMANODE);
  for (unsigned i = 0; i < count; ++i) {
    const hwloc_obj* node = library_.get_obj_by_depth(topology_, HWLOC_TYPE_DEPTH_NUMANODE, i);
    NumaNode out;
    out.id = static_cast<int>(node->os_index);
    out.has_cpus = library_.bitmap_iszero(node->cpuset) == 0;
    for (const Package& p : machine_.packages) {
      const hwloc_obj* package =
          library_.get_obj_by_depth(topology_, packages, static_cast<unsigned>(p.id));
      if (out.has_cpus && library_.bitmap_isincluded(node->cpuset, package->cpuset) != 0)
        out.package = p.id;
    }
    machine_.numa_nodes.push_back(out);
  }
}

// The CPU node of a place in the CPU part of the tree, if it is one only.
std::optional<int> Walk::node_of(const hwloc_obj* object) const {
  std::optional<int> only;
  if (object->nodeset == nullptr) return only;
  for (const NumaNode& n : machine_.numa_nodes) {
    if (!n.has_cpus || library_.bitmap_isset(object->nodeset, static_cast<unsigned>(n.id)) == 0)
      continue;
    if (only) return std::nullopt;
    only = n.id;
  }
  return only;
}

void Walk::visit(const hwloc_obj* object) {
  if (object->io_first_child != nullptr) {
    const std::optional<int> numa = node_of(object);
    for (const hwloc_obj* c = object->io_first_child; c != nullptr; c = c->next_sibling)
      visit_io(c, numa);
  }
  for (const hwloc_obj* c = object->first_child; c != nullptr; c = c->next_sibling) visit(c);
}

PciFunction Walk::function(const hwloc_obj* device, std::optional<int> numa) {
  // Both kinds of object begin with the same PCI attributes.
  const auto& a =
      device->type == HWLOC_OBJ_BRIDGE ? device->attr->bridge.upstream.pci : device->attr->pcidev;
  PciFunction f;
  f.bus = {a.domain, a.bus, a.dev, a.func};
  f.id = {a.vendor_id, a.device_id, a.subvendor_id, a.subdevice_id,
          static_cast<std::uint32_t>(a.class_id) << 8};
  f.model = info(device, "PCIDevice");
  if (f.model.empty()) f.model = model_name(f.id);
  f.numa = numa;
  if (a.linkspeed > 0) f.link.gbytes = static_cast<double>(a.linkspeed);
  f.parent = bridge_index(device->parent, numa);
  return f;
}

// Index of a bridge, which is entered with everything above it when first asked for: bridges with
// none of our devices below stay out.
std::optional<int> Walk::bridge_index(const hwloc_obj* object, std::optional<int> numa) {
  if (object == nullptr || object->type != HWLOC_OBJ_BRIDGE) return std::nullopt;
  if (const auto it = bridge_of_.find(object); it != bridge_of_.end()) return it->second;
  const auto& a = object->attr->bridge;
  Bridge b;
  if (a.upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
    b.kind = BridgeKind::host_bridge;
    b.pci.bus = {a.downstream.pci.domain, a.downstream.pci.secondary_bus, 0, 0};
    b.pci.numa = numa;
  } else {
    b.pci = function(object, numa);
  }
  b.secondary_bus = a.downstream.pci.secondary_bus;
  b.subordinate_bus = a.downstream.pci.subordinate_bus;
  const int index = static_cast<int>(machine_.bridges.size());
  machine_.bridges.push_back(std::move(b));
  bridge_of_[object] = index;
  return index;
}

void Walk::visit_io(const hwloc_obj* object, std::optional<int> numa) {
  if (object->type == HWLOC_OBJ_PCI_DEVICE) {
    numa_of_[object] = numa;
    const auto& a = object->attr->pcidev;
    const PciId id{a.vendor_id, a.device_id, a.subvendor_id, a.subdevice_id,
                   static_cast<std::uint32_t>(a.class_id) << 8};
    if (is_gpu(id)) {
      Gpu gpu;
      gpu.pci = function(object, numa);
      gpu.name = gpu.pci.model;
      machine_.gpus.push_back(std::move(gpu));
    } else if (is_dma_function(id)) {
      machine_.dma_functions.push_back(function(object, numa));
    }
  } else if (object->type == HWLOC_OBJ_OS_DEVICE &&
             object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
    add_os_device(object);
  }
  for (const hwloc_obj* c = object->io_first_child; c != nullptr; c = c->next_sibling)
    visit_io(c, numa);
}

void Walk::add_os_device(const hwloc_obj* object) {
  Hca hca;
  hca.name = object->name == nullptr ? "" : object->name;
  const hwloc_obj* device = object->parent;
  while (device != nullptr && device->type == HWLOC_OBJ_OS_DEVICE) device = device->parent;
  if (device != nullptr && device->type == HWLOC_OBJ_PCI_DEVICE) {
    hca.pci = function(device, numa_of_[device]);
    hca.kind = hca_kind(hca.pci->id);
  }
  hca.node_guid = parse_guid(info(object, "NodeGUID"));
  hca.sys_image_guid = parse_guid(info(object, "SysImageGUID"));
  for (int port = 1; port <= 16; ++port) {
    const std::string prefix = "Port" + std::to_string(port);
    const std::string state = info(object, (prefix + "State").c_str());
    if (state.empty()) break;
    HcaPort p;
    p.number = port;
    p.state = parse_port_state(state);
    const std::string lid = info(object, (prefix + "LID").c_str());
    if (lid.starts_with("0x")) p.lid = static_cast<int>(std::strtol(lid.c_str(), nullptr, 16));
    hca.ports.push_back(std::move(p));
  }
  machine_.hcas.push_back(std::move(hca));
}

}  // namespace

Machine walk_hwloc(const HwlocLibrary& library, hwloc_topology_t topology) {
  return Walk(library, topology).run();
}

}  // namespace twinpath
