#include "topology/model/machine.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

namespace twinpath {
namespace {

// Hexadecimal digits, at most `digits` of them and nothing else.
std::optional<std::uint32_t> hex(std::string_view text, std::size_t digits) {
  std::uint32_t v = 0;
  if (text.empty() || text.size() > digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return v;
}

std::string check_function(const Machine& machine, const PciFunction& f, const std::string& what) {
  if (!f.parent) return {};
  if (*f.parent < 0 || static_cast<std::size_t>(*f.parent) >= machine.bridges.size())
    return what + " has a parent that does not exist";
  return {};
}

}  // namespace

std::string BusId::text() const {
  char out[32];
  std::snprintf(out, sizeof out, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return out;
}

std::optional<BusId> parse_bus_id(std::string_view text) {
  const std::size_t dot = text.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  const std::size_t second = text.rfind(':', dot);
  if (second == std::string_view::npos || second == 0) return std::nullopt;
  const std::size_t first = text.rfind(':', second - 1);
  const std::size_t bus_at = first == std::string_view::npos ? 0 : first + 1;
  const auto domain = first == std::string_view::npos ? 0u : hex(text.substr(0, first), 8);
  const auto bus = hex(text.substr(bus_at, second - bus_at), 2);
  const auto device = hex(text.substr(second + 1, dot - second - 1), 2);
  const auto function = hex(text.substr(dot + 1), 1);
  if (!domain || !bus || !device || !function || *device > 0x1f || *function > 7)
    return std::nullopt;
  return BusId{*domain, static_cast<std::uint8_t>(*bus), static_cast<std::uint8_t>(*device),
               static_cast<std::uint8_t>(*function)};
}

double pcie_gbytes(double gts, int width) {
  const double coded = gts <= 5.0 ? 8.0 / 10 : gts < 64.0 ? 128.0 / 130 : 242.0 / 256;
  return gts * width * coded / 8;
}

std::optional<double> PcieLink::now() const {
  if (gts && width) return pcie_gbytes(*gts, *width);
  return gbytes;
}

std::optional<double> PcieLink::at_most() const {
  if (max_gts && max_width) return pcie_gbytes(*max_gts, *max_width);
  return now();
}

bool PcieLink::degraded() const {
  return gts && width && max_gts && max_width && (*gts < *max_gts || *width < *max_width);
}

std::string AcsControl::text() const {
  constexpr std::pair<std::uint16_t, const char*> kBits[] = {
      {0x01, "SV"}, {0x02, "TB"}, {0x04, "RR"}, {0x08, "CR"},
      {0x10, "UF"}, {0x20, "EC"}, {0x40, "DT"}};
  std::string out;
  for (const auto& [bit, name] : kBits) {
    if ((bits & bit) == 0) continue;
    if (!out.empty()) out += ',';
    out += name;
  }
  return out.empty() ? "none" : out;
}

const NumaNode* Machine::numa_node(int id) const {
  const auto it = std::find_if(numa_nodes.begin(), numa_nodes.end(),
                               [&](const NumaNode& n) { return n.id == id; });
  return it == numa_nodes.end() ? nullptr : &*it;
}

std::optional<int> Machine::only_cpu_node() const {
  std::optional<int> only;
  for (const NumaNode& n : numa_nodes) {
    if (!n.has_cpus) continue;
    if (only) return std::nullopt;
    only = n.id;
  }
  return only;
}

const Hca* Machine::find_hca(std::string_view name) const {
  const auto it =
      std::find_if(hcas.begin(), hcas.end(), [&](const Hca& h) { return h.name == name; });
  return it == hcas.end() ? nullptr : &*it;
}

Hca* Machine::find_hca(std::string_view name) {
  return const_cast<Hca*>(std::as_const(*this).find_hca(name));
}

const Gpu* Machine::find_gpu(const BusId& bus) const {
  const auto it =
      std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) { return g.pci.bus == bus; });
  return it == gpus.end() ? nullptr : &*it;
}

Gpu* Machine::find_gpu(const BusId& bus) {
  return const_cast<Gpu*>(std::as_const(*this).find_gpu(bus));
}

void Machine::warn(std::string code, std::string text, std::string remedy) {
  warnings.push_back({std::move(code), std::move(text), std::move(remedy)});
}

bool Machine::has_warning(std::string_view code) const {
  return std::any_of(warnings.begin(), warnings.end(),
                     [&](const TopologyWarning& w) { return w.code == code; });
}

void sort_devices(Machine& machine) {
  std::stable_sort(machine.gpus.begin(), machine.gpus.end(),
                   [](const Gpu& a, const Gpu& b) { return a.pci.bus < b.pci.bus; });
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) machine.gpus[i].index = static_cast<int>(i);
  // Adapters without a PCI place come last.
  auto before = [](const Hca& a, const Hca& b) {
    const PciFunction* x = a.pci ? &*a.pci : a.data_path();
    const PciFunction* y = b.pci ? &*b.pci : b.data_path();
    if ((x == nullptr) != (y == nullptr)) return x != nullptr;
    if (x != nullptr && x->bus != y->bus) return x->bus < y->bus;
    return a.name < b.name;
  };
  std::stable_sort(machine.hcas.begin(), machine.hcas.end(), before);
  std::stable_sort(machine.dma_functions.begin(), machine.dma_functions.end(),
                   [](const DmaFunction& a, const DmaFunction& b) { return a.bus < b.bus; });
  std::stable_sort(machine.numa_nodes.begin(), machine.numa_nodes.end(),
                   [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
}

std::string check_machine(const Machine& machine) {
  for (std::size_t i = 0; i < machine.bridges.size(); ++i) {
    const auto& parent = machine.bridges[i].pci.parent;
    if (parent && (*parent < 0 || static_cast<std::size_t>(*parent) >= i))
      return "bridge " + machine.bridges[i].pci.bus.text() + " comes before its parent";
  }
  if (machine.gpus.size() > kMostDevices || machine.hcas.size() > kMostDevices)
    return "it has more than " + std::to_string(kMostDevices) + " GPUs or HCAs";
  std::string breach;
  for (std::size_t i = 0; i < machine.gpus.size() && breach.empty(); ++i) {
    const BusId& bus = machine.gpus[i].pci.bus;
    if (machine.gpus[i].index != static_cast<int>(i)) breach = "a GPU has a wrong index";
    if (i > 0 && machine.gpus[i - 1].pci.bus == bus) breach = "GPU " + bus.text() + " stands twice";
    if (i > 0 && bus < machine.gpus[i - 1].pci.bus)
      breach = "GPUs are not in the order of their bus ids";
    if (breach.empty())
      breach = check_function(machine, machine.gpus[i].pci, "GPU " + std::to_string(i));
  }
  for (const Hca& h : machine.hcas) {
    if (breach.empty() && h.pci) breach = check_function(machine, *h.pci, h.name);
    if (breach.empty() && h.data_direct) breach = check_function(machine, *h.data_direct, h.name);
  }
  for (const DmaFunction& f : machine.dma_functions)
    if (breach.empty()) breach = check_function(machine, f, f.bus.text());
  for (const PciFunction& f : machine.unnamed)
    if (breach.empty()) breach = check_function(machine, f, f.bus.text());
  return breach;
}

std::string_view name_of(BridgeKind kind) {
  switch (kind) {
    case BridgeKind::host_bridge:
      return "host bridge";
    case BridgeKind::root_port:
      return "root port";
    case BridgeKind::upstream:
      return "upstream port";
    case BridgeKind::downstream:
      return "downstream port";
    case BridgeKind::unknown:
      break;
  }
  return "bridge";
}

std::string_view name_of(PortState state) {
  switch (state) {
    case PortState::down:
      return "DOWN";
    case PortState::init:
      return "INIT";
    case PortState::armed:
      return "ARMED";
    case PortState::active:
      return "ACTIVE";
  }
  return "?";
}

std::string_view name_of(LinkLayer layer) {
  return layer == LinkLayer::infiniband ? "InfiniBand" : "Ethernet";
}

std::string_view name_of(HcaKind kind) {
  switch (kind) {
    case HcaKind::mlx5:
      return "mlx5";
    case HcaKind::efa:
      return "efa";
    case HcaKind::cxi:
      return "cxi";
    case HcaKind::soft:
      return "soft";
    case HcaKind::other:
      break;
  }
  return "other";
}

std::string_view name_of(HcaRole role) { return role == HcaRole::data ? "data" : "management"; }

}  // namespace twinpath
