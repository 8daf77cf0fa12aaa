#include "topology/read/io_tree.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "topology/model/pci_ids.h"
#include "topology/read/guid.h"

namespace twinpath {
namespace {

using Kind = IoObject::Kind;

class Entry {
 public:
  explicit Entry(Machine& machine) : machine_(machine) {}

  void visit(const IoPlace& place) {
    numa_ = place.numa;
    for (const IoObject& o : place.objects) visit(o);
  }

 private:
  void visit(const IoObject& object) {
    if (object.kind == Kind::device) {
      if (is_gpu(object.id)) {
        Gpu gpu;
        gpu.pci = function(object, above_.size());
        gpu.name = gpu.pci.model;
        machine_.gpus.push_back(std::move(gpu));
      } else if (is_dma_function(object.id)) {
        machine_.dma_functions.push_back(function(object, above_.size()));
      } else if (is_slingshot(object.id)) {
        add_slingshot(object);
      }
    } else if (object.kind == Kind::openfabrics) {
      add_adapter(object);
    }
    above_.push_back(&object);
    for (const IoObject& c : object.children) visit(c);
    above_.pop_back();
  }

  // A function with `depth` objects above it.
  PciFunction function(const IoObject& object, std::size_t depth) {
    PciFunction f;
    f.bus = object.bus;
    f.id = object.id;
    f.model = object.info("PCIDevice");
    if (f.model.empty()) f.model = model_name(f.id);
    f.numa = numa_;
    if (object.link_gbytes > 0) f.link.gbytes = object.link_gbytes;
    if (depth > 0) f.parent = bridge(depth - 1);
    return f;
  }

  // The bridge at this depth of the way here, entered with everything above it when first asked
  // for: bridges with none of our devices below stay out.
  std::optional<int> bridge(std::size_t depth) {
    const IoObject& object = *above_[depth];
    if (object.kind != Kind::host_bridge && object.kind != Kind::bridge) return std::nullopt;
    if (const auto it = bridge_of_.find(&object); it != bridge_of_.end()) return it->second;
    Bridge b;
    if (object.kind == Kind::host_bridge) {
      b.kind = BridgeKind::host_bridge;
      b.pci.bus = object.bus;
      b.pci.numa = numa_;
    } else {
      b.pci = function(object, depth);
    }
    b.secondary_bus = object.secondary_bus;
    b.subordinate_bus = object.subordinate_bus;
    const int index = static_cast<int>(machine_.bridges.size());
    machine_.bridges.push_back(std::move(b));
    bridge_of_[&object] = index;
    return index;
  }

  void add_slingshot(const IoObject& object) {
    Hca hca;
    hca.name = object.bus.text();
    for (const IoObject& c : object.children) {
      if (c.kind == Kind::openfabrics) return;  // newer hwloc knows it as an adapter
      if (c.kind == Kind::network && !c.name.empty()) hca.name = c.name;
    }
    hca.pci = function(object, above_.size());
    hca.kind = HcaKind::cxi;
    hca.foreign = foreign_transport(object.id);
    machine_.hcas.push_back(std::move(hca));
  }

  void add_adapter(const IoObject& object) {
    Hca hca;
    hca.name = object.name;
    std::size_t depth = above_.size();
    while (depth > 0 && above_[depth - 1]->kind != Kind::device &&
           above_[depth - 1]->kind != Kind::bridge && above_[depth - 1]->kind != Kind::host_bridge)
      --depth;
    if (depth > 0 && above_[depth - 1]->kind == Kind::device) {
      hca.pci = function(*above_[depth - 1], depth - 1);
      hca.kind = hca_kind(hca.pci->id);
      hca.foreign = foreign_transport(hca.pci->id);
    }
    hca.node_guid = parse_guid(object.info("NodeGUID"));
    hca.sys_image_guid = parse_guid(object.info("SysImageGUID"));
    for (int port = 1; port <= 16; ++port) {
      const std::string prefix = "Port" + std::to_string(port);
      const std::string state = object.info(prefix + "State");
      if (state.empty()) break;
      HcaPort p;
      p.number = port;
      p.state = parse_port_state(state);
      const std::string lid = object.info(prefix + "LID");
      if (lid.starts_with("0x")) p.lid = static_cast<int>(std::strtol(lid.c_str(), nullptr, 16));
      hca.ports.push_back(std::move(p));
    }
    machine_.hcas.push_back(std::move(hca));
  }

  Machine& machine_;
  std::optional<int> numa_;
  std::vector<const IoObject*> above_;  // from the outermost object to here
  std::map<const IoObject*, int> bridge_of_;
};

}  // namespace

std::string IoObject::info(std::string_view key) const {
  const auto it =
      std::find_if(infos.begin(), infos.end(), [&](const auto& i) { return i.first == key; });
  return it == infos.end() ? std::string() : it->second;
}

void enter_io(Machine& machine, const std::vector<IoPlace>& places) {
  Entry entry(machine);
  for (const IoPlace& p : places) entry.visit(p);
}

}  // namespace twinpath
