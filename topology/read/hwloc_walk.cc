#include "topology/read/hwloc_walk.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/read/io_tree.h"

namespace twinpath {
namespace {

std::string info(const hwloc_obj* object, const char* name) {
  for (unsigned i = 0; i < object->infos_count; ++i)
    if (std::strcmp(object->infos[i].name, name) == 0) return object->infos[i].value;
  return {};
}

IoObject::Kind kind_of(const hwloc_obj* object) {
  switch (object->type) {
    case HWLOC_OBJ_BRIDGE:
      return object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST
                 ? IoObject::Kind::host_bridge
                 : IoObject::Kind::bridge;
    case HWLOC_OBJ_PCI_DEVICE:
      return IoObject::Kind::device;
    case HWLOC_OBJ_OS_DEVICE:
      switch (object->attr->osdev.type) {
        case HWLOC_OBJ_OSDEV_OPENFABRICS:
          return IoObject::Kind::openfabrics;
        case HWLOC_OBJ_OSDEV_NETWORK:
          return IoObject::Kind::network;
        default:
          return IoObject::Kind::other;
      }
    default:
      return IoObject::Kind::other;
  }
}

IoObject io_object(const hwloc_obj* object) {
  IoObject out;
  out.kind = kind_of(object);
  if (object->type == HWLOC_OBJ_BRIDGE) {
    const auto& b = object->attr->bridge;
    out.bus = {b.downstream.pci.domain, b.downstream.pci.secondary_bus, 0, 0};
    out.secondary_bus = b.downstream.pci.secondary_bus;
    out.subordinate_bus = b.downstream.pci.subordinate_bus;
  }
  if (out.kind == IoObject::Kind::bridge || out.kind == IoObject::Kind::device) {
    // Both kinds of object begin with the same PCI attributes.
    const auto& a =
        object->type == HWLOC_OBJ_BRIDGE ? object->attr->bridge.upstream.pci : object->attr->pcidev;
    out.bus = {a.domain, a.bus, a.dev, a.func};
    out.id = {a.vendor_id, a.device_id, a.subvendor_id, a.subdevice_id,
              static_cast<std::uint32_t>(a.class_id) << 8};
    out.link_gbytes = static_cast<double>(a.linkspeed);
  }
  if (object->name != nullptr) out.name = object->name;
  for (unsigned i = 0; i < object->infos_count; ++i)
    out.infos.emplace_back(object->infos[i].name, object->infos[i].value);
  for (const hwloc_obj* c = object->io_first_child; c != nullptr; c = c->next_sibling)
    out.children.push_back(io_object(c));
  return out;
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
    enter_io(machine_, places_);
    machine_.sources.push_back(library_.version);
    return std::move(machine_);
  }

 private:
  void read_host(const hwloc_obj* root);
  void read_numa();
  void visit(const hwloc_obj* object);
  std::optional<int> node_of(const hwloc_obj* object) const;

  const HwlocLibrary& library_;
  hwloc_topology_t topology_;
  Machine machine_;
  std::vector<IoPlace> places_;
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
    IoPlace place{node_of(object), {}};
    for (const hwloc_obj* c = object->io_first_child; c != nullptr; c = c->next_sibling)
      place.objects.push_back(io_object(c));
    places_.push_back(std::move(place));
  }
  for (const hwloc_obj* c = object->first_child; c != nullptr; c = c->next_sibling) visit(c);
}

}  // namespace

Machine walk_hwloc(const HwlocLibrary& library, hwloc_topology_t topology) {
  return Walk(library, topology).run();
}

}  // namespace twinpath
