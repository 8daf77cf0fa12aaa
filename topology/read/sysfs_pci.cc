// GPUs, data-direct functions and the bridges above them, from the real paths in sysfs.
#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "topology/model/pci_ids.h"
#include "topology/read/config_space.h"
#include "topology/read/sysfs_reader.h"

namespace twinpath {
namespace {

constexpr const char* kDevices = "/sys/bus/pci/devices/";

std::uint16_t id16(const FileRoot& root, const std::string& path) {
  return static_cast<std::uint16_t>(root.number(path).value_or(0) & 0xffff);
}

PciId read_id(const FileRoot& root, const std::string& path) {
  PciId id;
  id.vendor = id16(root, path + "/vendor");
  id.device = id16(root, path + "/device");
  id.subsystem_vendor = id16(root, path + "/subsystem_vendor");
  id.subsystem_device = id16(root, path + "/subsystem_device");
  id.class_code = static_cast<std::uint32_t>(root.number(path + "/class").value_or(0) & 0xffffff);
  return id;
}

std::optional<int> lanes(const FileRoot& root, const std::string& path) {
  const auto n = root.number(path);
  // 0 is the kernel's "no link", 255 a lost device.
  if (!n || *n < 1 || *n > 32) return std::nullopt;
  return static_cast<int>(*n);
}

PcieLink read_link(const FileRoot& root, const std::string& path) {
  PcieLink l;
  l.gts = parse_link_speed(root.text(path + "/current_link_speed").value_or(""));
  l.width = lanes(root, path + "/current_link_width");
  l.max_gts = parse_link_speed(root.text(path + "/max_link_speed").value_or(""));
  l.max_width = lanes(root, path + "/max_link_width");
  return l;
}

// numa_node when the kernel has one, otherwise the node whose CPUs local_cpus names.
std::optional<int> read_numa(const FileRoot& root, const std::string& path,
                             const Machine& machine) {
  if (const auto only = machine.only_cpu_node()) return only;
  const auto told = root.number(path + "/numa_node");
  if (told && *told >= 0) {
    const NumaNode* node = machine.numa_node(static_cast<int>(*told));
    if (node == nullptr || node->has_cpus) return static_cast<int>(*told);
  }
  const auto local = parse_cpu_mask(root.text(path + "/local_cpus").value_or(""));
  if (!local || local->empty()) return std::nullopt;
  std::optional<int> found;
  for (const NumaNode& n : machine.numa_nodes) {
    const auto cpus = parse_cpu_mask(n.cpus);
    if (!n.has_cpus || !cpus) continue;
    const bool touches = std::any_of(cpus->begin(), cpus->end(), [&](int c) {
      return std::binary_search(local->begin(), local->end(), c);
    });
    if (!touches) continue;
    if (found) return std::nullopt;
    found = n.id;
  }
  return found;
}

void read_iommu(const FileRoot& root, const std::string& path, PciFunction& f) {
  const auto name = root.link_name(path + "/iommu_group");
  if (!name) return;
  int group = 0;
  const auto [end, error] = std::from_chars(name->data(), name->data() + name->size(), group);
  if (error != std::errc{} || end != name->data() + name->size()) return;
  f.iommu_group = group;
  f.iommu_type = root.text("/sys/kernel/iommu_groups/" + *name + "/type");
}

// "pci0000:16", "pci10000:e0": domain and root bus.
std::optional<BusId> host_bridge_name(std::string_view name) {
  if (!name.starts_with("pci")) return std::nullopt;
  return parse_bus_id(std::string(name.substr(3)) + ":00.0");
}

// Everything about a function but its place.
PciFunction read_values(const FileRoot& root, const std::string& path, const BusId& bus,
                        Machine& machine) {
  PciFunction f;
  f.bus = bus;
  f.id = read_id(root, path);
  f.model = model_name(f.id);
  f.numa = read_numa(root, path, machine);
  f.link = read_link(root, path);
  read_iommu(root, path, f);
  if (const auto name = root.link_name(path + "/physfn")) f.physical_function = parse_bus_id(*name);
  if (const auto n = root.number(path + "/sriov_numvfs"))
    f.virtual_functions = static_cast<int>(*n);
  return f;
}

std::vector<std::uint8_t> read_config(const FileRoot& root, const std::string& path, PciFunction& f,
                                      Machine& machine) {
  auto config = root.bytes(path + "/config", 4096).value_or(std::vector<std::uint8_t>());
  if (!config.empty()) {
    auto& extended = machine.host.extended_config;
    extended = extended.value_or(false) || config.size() > 256;
    f.acs = acs_control(config);
  }
  return config;
}

int enter_bridge(const FileRoot& root, const std::string& path, const BusId& bus,
                 std::optional<int> parent, bool host, Machine& machine) {
  for (std::size_t i = 0; i < machine.bridges.size(); ++i) {
    const Bridge& b = machine.bridges[i];
    if (b.pci.bus == bus && (b.kind == BridgeKind::host_bridge) == host) return static_cast<int>(i);
  }
  Bridge b;
  if (host) {
    b.kind = BridgeKind::host_bridge;
    b.pci.bus = bus;
    b.secondary_bus = bus.bus;
  } else {
    b.pci = read_values(root, path, bus, machine);
    b.pci.parent = parent;
    const auto config = read_config(root, path, b.pci, machine);
    b.kind = port_kind(config);
    if (const auto buses = bus_numbers(config)) {
      b.secondary_bus = buses->secondary;
      b.subordinate_bus = buses->subordinate;
    }
  }
  machine.bridges.push_back(std::move(b));
  return static_cast<int>(machine.bridges.size()) - 1;
}

// "Node:      2\nStatus:    online": the memory node of a GPU that is coherent with its CPU.
std::optional<int> memory_node(const FileRoot& root, const std::string& gpu) {
  const auto text = root.text("/proc/driver/nvidia/gpus/" + gpu + "/numa_status");
  if (!text || text->find("online") == std::string::npos) return std::nullopt;
  const std::size_t at = text->find("Node:");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t digit = text->find_first_not_of(" \t", at + 5);
  int node = -1;
  if (digit != std::string::npos)
    std::from_chars(text->data() + digit, text->data() + text->size(), node);
  return node >= 0 ? std::optional<int>(node) : std::nullopt;
}

Gpu read_gpu(const FileRoot& root, const std::string& path, const std::string& name,
             Machine& machine) {
  Gpu gpu;
  gpu.pci = read_function(root, path, machine);
  const auto text = root.text("/proc/driver/nvidia/gpus/" + name + "/information").value_or("");
  if (const std::size_t at = text.find("Model:"); at != std::string::npos) {
    const std::size_t begin = text.find_first_not_of(" \t", at + 6);
    if (begin != std::string::npos) gpu.name = text.substr(begin, text.find('\n', begin) - begin);
  }
  gpu.memory_node = memory_node(root, name);
  // A GPU whose memory is a NUMA node of an Arm machine is linked to its CPU by NVLink-C2C
  // (Grace); its PCI function is attached to that CPU's node.
  if (gpu.memory_node && machine.host.cpu.arch == "arm64") gpu.c2c_node = gpu.pci.numa;
  return gpu;
}

Hca read_slingshot(const FileRoot& root, const std::string& path, const std::string& name,
                   Machine& machine) {
  Hca hca;
  const auto interfaces = root.list(path + "/net");
  hca.name = interfaces && !interfaces->empty() ? interfaces->front() : name;
  hca.pci = read_function(root, path, machine);
  hca.kind = HcaKind::cxi;
  hca.foreign = foreign_transport(hca.pci->id);
  return hca;
}

}  // namespace

std::optional<double> parse_link_speed(const std::string& text) {
  // Locale-independent, unlike strtod: digits, a point, digits.
  double v = 0;
  std::size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && i < 6; ++i)
    v = v * 10 + (text[i] - '0');
  if (i == 0) return std::nullopt;
  if (i < text.size() && text[i] == '.') {
    double unit = 0.1;
    for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, unit /= 10)
      v += unit * (text[i] - '0');
  }
  if (v <= 0 || text.find("GT/s", i) == std::string::npos) return std::nullopt;
  return v;
}

PciFunction read_function(const FileRoot& root, const std::string& path, Machine& machine) {
  // Components from the last host bridge on: with VMD one host bridge lies below another.
  std::vector<std::pair<BusId, std::string>> chain;  // bus id and path
  bool below_host = false;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at + 1), path.size());
    const std::string_view name = std::string_view(path).substr(at + 1, slash - at - 1);
    if (const auto host = host_bridge_name(name)) {
      chain.assign(1, {*host, path.substr(0, slash)});
      below_host = true;
    } else if (const auto bus = parse_bus_id(name)) {
      chain.emplace_back(*bus, path.substr(0, slash));
    }
    at = slash;
  }
  if (chain.empty() || (below_host && chain.size() < 2)) return {};
  std::optional<int> parent;
  for (std::size_t i = 0; i + 1 < chain.size(); ++i)
    parent =
        enter_bridge(root, chain[i].second, chain[i].first, parent, below_host && i == 0, machine);
  PciFunction f = read_values(root, path, chain.back().first, machine);
  f.parent = parent;
  (void)read_config(root, path, f, machine);
  return f;
}

void read_pci(const FileRoot& root, Machine& machine) {
  const auto names = root.list(kDevices);
  if (!names) {
    machine.warn("NO_PCI", "sys/bus/pci/devices cannot be read: no PCI device is known",
                 "mount /sys readable");
    return;
  }
  bool any_group = false;
  for (const std::string& name : *names) {
    if (!parse_bus_id(name)) continue;
    const std::string link = kDevices + name;
    any_group = any_group || root.link_name(link + "/iommu_group").has_value();
    PciId id;
    id.class_code = static_cast<std::uint32_t>(root.number(link + "/class").value_or(0) & 0xffffff);
    id.vendor = id16(root, link + "/vendor");
    const bool gpu = is_gpu(id), slingshot = is_slingshot(id);
    if (!gpu && !slingshot && !is_dma_function(id)) continue;
    const auto path = root.real(link);
    if (!path) continue;
    if (gpu) {
      machine.gpus.push_back(read_gpu(root, *path, name, machine));
    } else if (slingshot) {
      machine.hcas.push_back(read_slingshot(root, *path, name, machine));
    } else {
      machine.dma_functions.push_back(read_function(root, *path, machine));
    }
  }
  if (any_group) machine.host.iommu_on = true;
}

}  // namespace twinpath
