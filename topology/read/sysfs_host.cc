// NUMA nodes, packages, CPU model, drivers and kernel, from /sys and /proc.

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <string_view>

#include "topology/read/sysfs_reader.h"

namespace twinpath {
namespace {

constexpr int kMostCpus = 65536;

// The value of "key   : value" in the first block of a /proc text.
std::string field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t colon = line.find(':', key.size());
    if (colon == std::string::npos || line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::optional<int> integer(std::string_view text, int base = 10) {
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  int v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v, base);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return v;
}

CpuModel read_cpu(const std::string& cpuinfo, const std::string& machine_name) {
  CpuModel cpu;
  cpu.vendor = field(cpuinfo, "vendor_id");
  cpu.name = field(cpuinfo, "model name");
  cpu.family = integer(field(cpuinfo, "cpu family"));
  cpu.model = integer(field(cpuinfo, "model"));
  const std::string implementer = field(cpuinfo, "CPU implementer");
  if (!cpu.vendor.empty()) {
    cpu.arch = "x86_64";
  } else if (!implementer.empty()) {
    cpu.arch = "arm64";
    cpu.vendor = "ARM";
    // Arm cores have a part number where x86 has family and model.
    cpu.family = integer(implementer);
    cpu.model = integer(field(cpuinfo, "CPU part"));
  } else if (cpuinfo.find("POWER") != std::string::npos) {
    cpu.arch = "ppc64";
    cpu.name = field(cpuinfo, "cpu");
  } else {
    cpu.arch = machine_name;
  }
  return cpu;
}

void read_nvidia(const FileRoot& root, HostFacts& host) {
  host.nvidia_driver = root.text("/sys/module/nvidia/version");
  if (const auto version = root.text("/proc/driver/nvidia/version"))
    host.nvidia_open = version->find("Open Kernel Module") != std::string::npos;
  if (const auto params = root.text("/proc/driver/nvidia/params")) {
    host.nvidia_registry = field(*params, "RegistryDwords");
    const std::string check = field(*params, "GrdmaPciTopoCheckOverride");
    if (!check.empty()) host.nvidia_topo_check_override = check != "0";
  }
}

std::optional<std::uint64_t> read_memlock(const FileRoot& root) {
  const auto limits = root.text("/proc/self/limits");
  if (!limits) return std::nullopt;
  std::istringstream lines(*limits);
  std::string line;
  constexpr std::string_view kName = "Max locked memory";
  while (std::getline(lines, line)) {
    if (line.compare(0, kName.size(), kName) != 0) continue;
    std::istringstream fields(line.substr(kName.size()));
    std::string soft;
    fields >> soft;
    if (soft == "unlimited") return ~std::uint64_t{0};
    std::uint64_t v = 0;
    const auto [end, error] = std::from_chars(soft.data(), soft.data() + soft.size(), v);
    return error == std::errc{} && end != soft.data() ? std::optional(v) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<bool> module_loaded(const FileRoot& root, const char* const (&names)[2]) {
  const auto modules = root.text("/proc/modules");
  for (const char* name : names) {
    if (root.has(std::string("/sys/module/") + name)) return true;
    if (modules && ("\n" + *modules).find("\n" + std::string(name) + " ") != std::string::npos)
      return true;
  }
  if (!modules) return std::nullopt;
  return false;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(const std::string& text) {
  std::vector<int> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, comma - at);
    const std::size_t dash = part.find('-');
    const auto first = integer(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (int i = *first; i <= *last; ++i) out.push_back(i);
    at = comma + 1;
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::optional<std::vector<int>> parse_cpu_mask(const std::string& text) {
  std::vector<int> out;
  int bit = 0;
  for (auto it = text.rbegin(); it != text.rend(); ++it) {
    if (*it == ',') continue;
    const char c = *it;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0 || bit >= kMostCpus) return std::nullopt;
    for (int i = 0; i < 4; ++i)
      if ((digit >> i & 1) != 0) out.push_back(bit + i);
    bit += 4;
  }
  return out;
}

void read_cpus_and_nodes(const FileRoot& root, Machine& machine) {
  const std::string nodes = "/sys/devices/system/node/";
  std::set<int> packages;
  auto package_of = [&](int cpu) -> std::optional<int> {
    const auto id = root.number("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                "/topology/physical_package_id");
    if (!id || *id < 0) return std::nullopt;
    packages.insert(static_cast<int>(*id));
    return static_cast<int>(*id);
  };
  const auto online = parse_cpu_list(root.text(nodes + "online").value_or(""));
  for (const int id : online.value_or(std::vector<int>())) {
    NumaNode node;
    node.id = id;
    node.cpus = root.text(nodes + "node" + std::to_string(id) + "/cpumap").value_or("");
    const auto cpus = parse_cpu_mask(node.cpus).value_or(std::vector<int>());
    node.has_cpus = !cpus.empty();
    if (node.has_cpus) {
      // First and last suffice: a node that spans packages has CPUs of both ends.
      const auto first = package_of(cpus.front());
      node.package = first == package_of(cpus.back()) ? first : std::nullopt;
    }
    machine.numa_nodes.push_back(std::move(node));
  }
  if (machine.numa_nodes.empty()) {
    // A kernel without NUMA: one node with everything.
    NumaNode node;
    node.package = package_of(0);
    machine.numa_nodes.push_back(node);
  }
  for (const int id : packages) machine.packages.push_back({id});
}

void read_host(const FileRoot& root, Machine& machine) {
  HostFacts& h = machine.host;
  const std::string captured = root.text("/proc/hwloc-nofile-info").value_or("");
  h.hostname = root.text("/proc/sys/kernel/hostname").value_or(field(captured, "HostName"));
  h.kernel = root.text("/proc/sys/kernel/osrelease").value_or(field(captured, "OSRelease"));
  h.product = root.text("/sys/class/dmi/id/product_name").value_or("");
  h.vendor = root.text("/sys/class/dmi/id/sys_vendor").value_or("");
  const std::string cpuinfo = root.text("/proc/cpuinfo").value_or("");
  h.cpu = read_cpu(cpuinfo, field(captured, "Architecture"));
  if (h.cpu.arch == "x86_64") {
    const std::string flags = " " + field(cpuinfo, "flags") + " ";
    if (flags.size() > 2) h.virtual_machine = flags.find(" hypervisor ") != std::string::npos;
  }
  if (const auto iommus = root.list("/sys/class/iommu")) h.iommu_on = !iommus->empty();
  read_nvidia(root, h);
  h.peermem = module_loaded(root, {"nvidia_peermem", "nv_peer_mem"});
  h.memlock = read_memlock(root);
  if (const auto nodes = root.list("/dev/infiniband")) {
    h.uverbs = std::any_of(nodes->begin(), nodes->end(),
                           [](const std::string& n) { return n.starts_with("uverbs"); });
  }
}

}  // namespace twinpath
