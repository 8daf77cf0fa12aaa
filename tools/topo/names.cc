#include "tools/topo/names.h"

#include <algorithm>
#include <cstdio>

#include "topology/model/pci_ids.h"

namespace twinpath::tools::topo {
namespace {

std::string hex4(unsigned v) {
  char out[16];
  std::snprintf(out, sizeof out, "%04x", v);
  return out;
}

// Model strings come from files: printable, and short enough for a line.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 48)) out += c >= 0x20 && c <= 0x7e ? c : '?';
  return out;
}

}  // namespace

std::string gpu_name(const Gpu& gpu) { return "GPU" + std::to_string(gpu.index); }

std::string gpu_model(const Gpu& gpu) {
  if (!gpu.name.empty()) return printable(gpu.name);
  if (!gpu.pci.model.empty()) return printable(gpu.pci.model);
  if (gpu.pci.id.vendor == 0) return gpu.amd ? "AMD GPU" : "GPU";
  const char* vendor = gpu.pci.id.vendor == kNvidia   ? "NVIDIA"
                       : gpu.pci.id.vendor == kAmdGpu ? "AMD"
                                                      : "vendor";
  return std::string(vendor) + " GPU " + hex4(gpu.pci.id.device);
}

std::string hca_model(const Hca& hca) {
  if (hca.pci && !hca.pci->model.empty()) return printable(hca.pci->model);
  if (hca.pci && hca.pci->id.vendor != 0)
    return std::string(name_of(hca.kind)) + " " + hex4(hca.pci->id.vendor) + ":" +
           hex4(hca.pci->id.device);
  return std::string(name_of(hca.kind));
}

std::string bridge_name(const Machine& machine, int bridge) {
  const Bridge& b = machine.bridges[static_cast<std::size_t>(bridge)];
  if (b.kind == BridgeKind::host_bridge) {
    const std::string bus = b.pci.bus.text();
    return "host bridge " + bus.substr(0, bus.rfind(':'));
  }
  const bool whole = b.folded || b.kind == BridgeKind::upstream;
  return (whole ? "switch" : std::string(name_of(b.kind))) + " " + b.pci.bus.text();
}

std::string generation(double gts) {
  constexpr double kRates[] = {2.5, 5, 8, 16, 32, 64, 128};
  for (int i = 0; i < 7; ++i)
    if (gts == kRates[i]) return "Gen" + std::to_string(i + 1);
  return number(gts, 1) + " GT/s";
}

std::string number(double value, int digits) {
  char out[48];
  std::snprintf(out, sizeof out, "%.*f", digits, value);
  return out;
}

std::string link_text(const PcieLink& link) {
  const auto rate = link.now();
  if (!rate) return "link not known";
  std::string out;
  if (link.gts && link.width)
    out = generation(*link.gts) + " x" + std::to_string(*link.width) + ", ";
  return out + number(*rate, *rate < 10 ? 1 : 0) + " GB/s";
}

std::string numa_text(std::optional<int> node) { return node ? "n" + std::to_string(*node) : "n?"; }

std::string hca_numa_text(const Hca& hca) {
  return hca.data_path() == nullptr && !hca.numa ? "-" : numa_text(numa_of(hca));
}

std::string rates_text(const Hca& hca) {
  if (hca.ports.empty()) return "?";
  const auto& first = hca.ports.front().gbps;
  const bool same = std::all_of(hca.ports.begin(), hca.ports.end(),
                                [&](const HcaPort& p) { return p.gbps == first; });
  if (same) {
    const std::string rate = first ? std::to_string(*first) : "?";
    return hca.ports.size() == 1 ? rate : std::to_string(hca.ports.size()) + "x" + rate;
  }
  std::vector<std::string> all;
  for (const HcaPort& p : hca.ports) all.push_back(p.gbps ? std::to_string(*p.gbps) : "?");
  return joined(all, "+");
}

std::string ports_text(const Hca& hca) {
  if (hca.ports.empty()) return "ports not known";
  std::string out = rates_text(hca) == "?" ? "rate not known" : rates_text(hca) + " Gb/s";
  if (const auto& layer = hca.ports.front().layer) out += " " + std::string(name_of(*layer));
  std::vector<std::string> states;
  for (const HcaPort& p : hca.ports) {
    const std::string s = p.state ? std::string(name_of(*p.state)) : "state not known";
    if (std::find(states.begin(), states.end(), s) == states.end()) states.push_back(s);
  }
  return out + " " + joined(states, "/");
}

std::optional<int> port_rate(const Hca& hca) {
  std::optional<int> best;
  for (const HcaPort& p : hca.ports) {
    if (p.state.value_or(PortState::active) != PortState::active) continue;
    if (p.gbps && (!best || *p.gbps > *best)) best = p.gbps;
  }
  return best;
}

bool any_port_active(const Hca& hca) {
  return hca.ports.empty() || std::any_of(hca.ports.begin(), hca.ports.end(), [](const HcaPort& p) {
           return p.state.value_or(PortState::active) == PortState::active;
         });
}

std::string cpu_text(const CpuModel& cpu) {
  if (!cpu.name.empty()) return printable(cpu.name);
  std::string out = cpu.vendor.empty() ? cpu.arch : cpu.vendor;
  if (out.empty()) return "CPU not known";
  if (cpu.family && cpu.model)
    out += " family " + std::to_string(*cpu.family) + " model " + std::to_string(*cpu.model);
  return printable(out);
}

std::string node_name(const Machine& machine) {
  return machine.host.hostname.empty() ? "node" : printable(machine.host.hostname);
}

std::string ranges(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (!out.empty()) out += ',';
    out += std::to_string(numbers[i]);
    if (end > i) out += "-" + std::to_string(numbers[end]);
    i = end + 1;
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const std::string& p : parts) {
    if (!out.empty()) out += between;
    out += p;
  }
  return out;
}

std::string few(const std::vector<std::string>& names) {
  if (names.size() <= 4) return joined(names, ", ");
  return std::to_string(names.size()) + " (" + names.front() + " ... " + names.back() + ")";
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

bool has_host_facts(const Machine& machine) {
  return std::any_of(machine.sources.begin(), machine.sources.end(),
                     [](const std::string& s) { return s.starts_with("sysfs"); });
}

}  // namespace twinpath::tools::topo
