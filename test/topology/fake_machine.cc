#include "test/topology/fake_machine.h"

#include <algorithm>
#include <filesystem>

#include "test/topology/data.h"
#include "test/topology/fake_text.h"

namespace twinpath::test {

namespace fs = std::filesystem;

namespace {

// Relative, as the kernel writes its links.
void link(const fs::path& at, const fs::path& target) {
  fs::create_directories(at.parent_path());
  fs::create_symlink(fs::relative(target, at.parent_path()), at);
}

}  // namespace

void FakeMachine::node(int id, int package, int cpus) {
  int first = 0;
  for (const Node& n : nodes_) first += n.cpus;
  nodes_.push_back({id, package, first, cpus});
}

void FakeMachine::memory_node(int id) { nodes_.push_back({id, -1, 0, 0}); }

FakeMachine::Function& FakeMachine::add(const std::string& path, const PciId& id, int numa) {
  const std::string parent = above(path);
  const bool known = std::any_of(functions_.begin(), functions_.end(),
                                 [&](const Function& f) { return f.path == parent; });
  if (!known && parent.find('/') != std::string::npos) {
    // Depth below the host bridge tells the kind of port.
    const auto depth = std::count(parent.begin(), parent.end(), '/');
    Function& bridge = add(parent, {0x10b5, 0x9797, 0x10b5, 0x0001, 0x060400}, numa);
    bridge.kind = depth == 1       ? BridgeKind::root_port
                  : depth % 2 == 0 ? BridgeKind::upstream
                                   : BridgeKind::downstream;
  }
  Function f;
  f.path = path;
  f.id = id;
  f.numa = numa;
  functions_.push_back(std::move(f));
  return functions_.back();
}

FakeMachine::Function& FakeMachine::gpu(const std::string& path, int numa) {
  return add(path, {0x10de, 0x2330, 0x10de, 0x16c1, 0x030200}, numa);
}

FakeMachine::Function& FakeMachine::hca(const std::string& path, int numa, const std::string& name,
                                        std::uint64_t guid) {
  Function& f = add(path, {0x15b3, 0x1021, 0x15b3, 0x0041, 0x020700}, numa);
  f.hca = name;
  f.guid = guid;
  return f;
}

FakeMachine::Function& FakeMachine::dma_function(const std::string& path, int numa,
                                                 const std::string& v3) {
  Function& f = add(path, {0x15b3, 0x2100, 0x15b3, 0x0208, 0x080100}, numa);
  f.v3 = v3;
  return f;
}

FakeMachine::Function& FakeMachine::at(const std::string& bus) {
  return *std::find_if(functions_.begin(), functions_.end(),
                       [&](const Function& f) { return last(f.path) == bus; });
}

std::string FakeMachine::mask(int numa) const {
  std::uint32_t bits = 0;
  for (const Node& n : nodes_)
    if (numa < 0 || n.id == numa)
      for (int c = 0; c < n.cpus; ++c) bits |= 1u << (n.first_cpu + c);
  return format("%08x", bits);
}

std::vector<std::uint8_t> FakeMachine::config(const Function& f) const {
  std::vector<std::uint8_t> c(config_bytes, 0);
  auto put = [&](std::size_t at, std::uint32_t v, std::size_t size) {
    for (std::size_t i = 0; i < size && at + i < c.size(); ++i)
      c[at + i] = static_cast<std::uint8_t>(v >> (8 * i));
  };
  put(0x00, f.id.vendor, 2);
  put(0x02, f.id.device, 2);
  put(0x06, 0x10, 2);
  put(0x09, f.id.class_code, 3);
  put(0x34, 0x40, 1);
  put(0x40, 0x10, 1);  // PCI Express capability, the only one
  unsigned type = 0;
  if (f.kind != BridgeKind::unknown) {
    type = f.kind == BridgeKind::root_port ? 4u : f.kind == BridgeKind::upstream ? 5u : 6u;
    std::uint32_t low = 0xff, high = 0;
    for (const Function& o : functions_) {
      if (!o.path.starts_with(f.path + "/")) continue;
      // A host bridge on the way, as VMD has, is a folder without a bus id of its own.
      const auto bus = parse_bus_id(last(o.path));
      if (!bus) continue;
      low = std::min<std::uint32_t>(low, bus->bus);
      high = std::max<std::uint32_t>(high, bus->bus);
    }
    put(0x0e, 1, 1);
    put(0x18, parse_bus_id(last(f.path)).value_or(BusId{}).bus, 1);
    put(0x19, low, 1);
    put(0x1a, high, 1);
  } else {
    put(0x2c, f.id.subsystem_vendor, 2);
    put(0x2e, f.id.subsystem_device, 2);
  }
  put(0x42, type << 4 | 2, 2);
  const unsigned generation = f.gts >= 32 ? 5 : f.gts >= 16 ? 4 : f.gts >= 8 ? 3 : 1;
  put(0x52, generation | static_cast<unsigned>(f.width) << 4, 2);
  if (f.acs) {
    put(0x100, 0x000d | 1u << 16, 4);
    put(0x106, *f.acs, 2);
  }
  return c;
}

void FakeMachine::write_function(const std::string& root, const Function& f) const {
  const std::string folder = root + "/sys/devices/" + f.path;
  const std::string bus = last(f.path);
  spill(folder + "/class", format("0x%06x\n", f.id.class_code));
  spill(folder + "/vendor", format("0x%04x\n", f.id.vendor));
  spill(folder + "/device", format("0x%04x\n", f.id.device));
  spill(folder + "/subsystem_vendor", format("0x%04x\n", f.id.subsystem_vendor));
  spill(folder + "/subsystem_device", format("0x%04x\n", f.id.subsystem_device));
  spill(folder + "/numa_node", std::to_string(f.numa) + "\n");
  if (local_cpus) spill(folder + "/local_cpus", mask(f.numa) + "\n");
  spill(folder + "/current_link_speed", format("%.1f GT/s PCIe\n", f.gts));
  spill(folder + "/max_link_speed", format("%.1f GT/s PCIe\n", f.max_gts));
  spill(folder + "/current_link_width", std::to_string(f.width) + "\n");
  spill(folder + "/max_link_width", "16\n");
  if (config_bytes > 0) {
    const auto c = config(f);
    spill(folder + "/config", std::string(c.begin(), c.end()));
  }
  if (!f.v3.empty()) {
    // Identifier string, then the read-only part with the keyword, then the end tag.
    std::string keyword = std::string("V3") + static_cast<char>(f.v3.size()) + f.v3;
    std::string vpd = std::string("\x82\x03\x00", 3) + "HCA" + '\x90' +
                      static_cast<char>(keyword.size()) + '\0' + keyword + '\x78';
    spill(folder + "/vpd", vpd);
  }
  if (f.iommu_group >= 0) {
    const std::string group = root + "/sys/kernel/iommu_groups/" + std::to_string(f.iommu_group);
    spill(group + "/type", "DMA-FQ\n");
    link(folder + "/iommu_group", group);
  }
  link(root + "/sys/bus/pci/devices/" + bus, folder);
  if (f.gpu_memory_node >= 0) {
    spill(root + "/proc/driver/nvidia/gpus/" + bus + "/numa_status",
          format("Node:      %d\nStatus:    online\n", f.gpu_memory_node));
  }
  if (!f.hca.empty()) write_hca(root, f);
}

void FakeMachine::write_hca(const std::string& root, const Function& f) const {
  const std::string folder = root + "/sys/devices/" + f.path + "/infiniband/" + f.hca;
  const std::string guid = guid_text(f.guid) + "\n";
  spill(folder + "/node_guid", guid);
  spill(folder + "/sys_image_guid", guid);
  spill(folder + "/ports/1/state", "4: ACTIVE\n");
  spill(folder + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  spill(folder + "/ports/1/link_layer", "InfiniBand\n");
  spill(folder + "/ports/1/lid", "0x7\n");
  spill(folder + "/ports/1/lid_mask_count", "0\n");
  spill(folder + "/ports/1/gids/0", "fe80:0000:0000:0000:" + guid);
  link(folder + "/device", root + "/sys/devices/" + f.path);
  link(root + "/sys/class/infiniband/" + f.hca, folder);
}

void FakeMachine::write_cpus(const std::string& root) const {
  const std::string system = root + "/sys/devices/system";
  std::string online, cpuinfo, mounts = "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n";
  int cpus = 0;
  for (const Node& n : nodes_) {
    online += (online.empty() ? "" : ",") + std::to_string(n.id);
    const std::string folder = system + "/node/node" + std::to_string(n.id);
    spill(folder + "/cpumap", (n.cpus > 0 ? mask(n.id) : "00000000") + "\n");
    spill(folder + "/meminfo", format("Node %d MemTotal: 1048576 kB\n", n.id));
    std::uint32_t siblings = 0;
    for (const Node& o : nodes_)
      for (int c = 0; c < o.cpus; ++c)
        if (o.package == n.package) siblings |= 1u << (o.first_cpu + c);
    for (int c = n.first_cpu; c < n.first_cpu + n.cpus; ++c, ++cpus) {
      const std::string topology = system + "/cpu/cpu" + std::to_string(c) + "/topology";
      spill(topology + "/physical_package_id", std::to_string(n.package) + "\n");
      spill(topology + "/core_id", std::to_string(c) + "\n");
      spill(topology + "/core_siblings", format("%08x\n", siblings));
      spill(topology + "/thread_siblings", format("%08x\n", 1u << c));
      cpuinfo += arm ? format("processor\t: %d\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n", c)
                     : format(
                           "processor\t: %d\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
                           "model\t\t: 143\nmodel name\t: Made up\nflags\t\t: fpu%s\n"
                           "physical id\t: %d\n\n",
                           c, hypervisor ? " hypervisor" : "", n.package);
    }
  }
  spill(system + "/node/online", online + "\n");
  spill(system + "/node/possible", online + "\n");
  spill(system + "/cpu/online", format("0-%d\n", cpus - 1));
  spill(system + "/cpu/present", format("0-%d\n", cpus - 1));
  spill(root + "/proc/cpuinfo", cpuinfo);
  spill(root + "/proc/meminfo", "MemTotal:       2097152 kB\n");
  spill(root + "/proc/mounts", mounts);
  spill(root + "/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nnvidia 1 1 - Live 0x0\n");
  spill(root + "/proc/hwloc-nofile-info",
        std::string("OSName: Linux\nHostName: fake\nArchitecture: ") + (arm ? "arm64" : "x86_64") +
            "\n");
}

void FakeMachine::write(const std::string& root) const {
  write_cpus(root);
  fs::create_directories(root + "/sys/bus/pci/devices");
  fs::create_directories(root + "/sys/class/infiniband");
  for (const Function& f : functions_) write_function(root, f);
  fs::create_directories(root + "/sys/class/iommu");
  if (iommu) spill(root + "/sys/class/iommu/dmar0/name", "dmar0\n");
}

}  // namespace twinpath::test
