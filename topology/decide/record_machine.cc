#include "topology/decide/record_machine.h"

#include <algorithm>
#include <charconv>

#include "topology/model/distance_rule.h"

namespace twinpath {
namespace {

// "5.12.0-x" is at least 5.12: the first kernel whose verbs take a dma-buf.
bool kernel_has_dmabuf_mr(std::string_view version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc{} || dot == end || *dot != '.') return false;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return false;
  return major > 5 || (major == 5 && minor >= 12);
}

// What is likely before anything was tried.  Only what a source told stands against it.
bool gdr_expected(const Machine& m, const Gpu* gpu, const Hca& hca) {
  if (hca.kind == HcaKind::soft) return true;
  if (hca.data_path() == nullptr || (gpu != nullptr && gpu->gdr == false)) return false;
  const bool no_dmabuf = m.host.nvidia_open == false ||
                         (!m.host.kernel.empty() && !kernel_has_dmabuf_mr(m.host.kernel));
  return !(m.host.peermem == false && no_dmabuf);
}

bool root_good(const Machine& m) {
  // Only Grace has GPUs linked to it by C2C.
  const bool grace = std::any_of(m.gpus.begin(), m.gpus.end(),
                                 [](const Gpu& g) { return g.c2c_node.has_value(); });
  if (grace) return root_complex_good("NVIDIA", 0, 0);
  const CpuModel& cpu = m.host.cpu;
  return root_complex_good(cpu.vendor, cpu.family.value_or(0), cpu.model.value_or(0));
}

// Whether the port of the common switch that leads to a device redirects.  Redirection sends up
// what would have turned at that port's switch; at ports farther down it goes up anyway.
template <class Redirects>
bool redirected(const Machine& m, const PciFunction& from, int common, Redirects redirects) {
  const AcsControl* turning = nullptr;
  for (const int b : ancestors(m, from.parent)) {
    if (b == common) return turning != nullptr && redirects(*turning);
    const auto& acs = m.bridges[static_cast<std::size_t>(b)].pci.acs;
    turning = acs ? &*acs : nullptr;
  }
  return false;
}

// Directional: a request is judged at the port of the one that asks, its answer at the port of the
// one that answers.  Above the switches everything passes the root complex anyway.
void read_acs(const Machine& m, const Gpu& gpu, const Hca& hca, const Relation& r, EndFacts& f) {
  if (!r.lca || r.pcie > Distance::pxb) return;
  f.acs_requests = redirected(m, *hca.data_path(), *r.lca, [](AcsControl a) {
    return a.request_redirect() || a.egress_control();
  });
  f.acs_answers =
      redirected(m, gpu.pci, *r.lca, [](AcsControl a) { return a.completion_redirect(); });
}

// The fastest active port; ports of which nothing is known count as active.
double port_rate(const Hca& hca) {
  int best = 0;
  for (const HcaPort& p : hca.ports) {
    if (p.state.value_or(PortState::active) == PortState::active)
      best = std::max(best, p.gbps.value_or(0));
  }
  return best;
}

// A sleeping GPU's link shows its lowest rate; a hypervisor's emulated link may show anything.
double link_rate(const Machine& m, const PciFunction& f) {
  const bool vm = m.host.virtual_machine.value_or(false);
  return (vm ? f.link.at_most() : f.link.now()).value_or(0);
}

double pair_rate(const Machine& m, const Gpu* gpu, const Hca& hca) {
  const PciFunction* path = hca.data_path();
  const double a = path == nullptr ? 0 : link_rate(m, *path);
  const double b = gpu == nullptr ? 0 : gpu->pci.link.at_most().value_or(0);
  return a <= 0 ? 0 : b <= 0 ? a : std::min(a, b);
}

std::optional<int> position(const Machine& m, const Hca& hca) {
  for (std::size_t i = 0; i < m.hcas.size(); ++i) {
    if (&m.hcas[i] == &hca || m.hcas[i].name == hca.name) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::uint64_t bus_number(const PciFunction* f) {
  if (f == nullptr) return ~std::uint64_t{0};
  const BusId& b = f->bus;
  return std::uint64_t{b.domain} << 16 | std::uint64_t{b.bus} << 8 | std::uint64_t{b.device} << 3 |
         b.function;
}

EndFacts facts_of_pair(const Machine& machine, const Gpu* gpu, const Hca* hca,
                       const PlatformFile& platform) {
  EndFacts f;
  f.virtual_machine = machine.host.virtual_machine.value_or(false);
  f.root_good = root_good(machine);
  if (gpu != nullptr) {
    f.gpu = gpu->index;
    f.compute_capability = gpu->compute_capability.value_or(0);
    f.nvlink = gpu->nvlinks.value_or(0) > 0;
  }
  if (hca == nullptr) return f;
  f.hca = position(machine, *hca);
  f.rail = platform.rail(hca->name);
  f.mlx5 = hca->kind == HcaKind::mlx5;
  f.devx = f.mlx5 && machine.host.uverbs.value_or(true);
  f.soft_queues = hca->kind == HcaKind::soft;
  f.virtual_function = hca->pci && hca->pci->physical_function;
  f.without_place = hca->kind == HcaKind::soft && !hca->pci;
  f.gdr_expected = gdr_expected(machine, gpu, *hca);
  f.port_gbps = port_rate(*hca);
  f.pcie_gbs = pair_rate(machine, gpu, *hca);
  if (gpu != nullptr && (hca->data_path() != nullptr || hca->numa)) {
    const Relation r = gpu_to_hca(machine, *gpu, *hca);
    f.distance = r.data_direct ? r.physical_function : r.distance;
    if (r.data_direct) f.data_direct = r.distance;
    read_acs(machine, *gpu, *hca, r, f);
  }
  if (gpu != nullptr) apply(platform.pair(gpu->pci.bus.text(), hca->name), f);
  return f;
}

}  // namespace

EndFacts pair_facts(const Machine& machine, const Gpu* gpu, const Hca* hca,
                    const PlatformFile& platform) {
  EndFacts f = facts_of_pair(machine, gpu, hca, platform);
  f.host = host_hash(machine);
  f.topology = topology_hash(machine);
  return f;
}

void without_data_direct(EndFacts& facts) {
  facts.data_direct.reset();
  facts.data_direct_refused = false;
}

std::vector<HcaCandidate> hca_candidates(const Machine& machine, const Gpu& gpu,
                                         const PlatformFile& platform) {
  std::vector<HcaCandidate> out;
  for (std::size_t i = 0; i < machine.hcas.size(); ++i) {
    const Hca& hca = machine.hcas[i];
    const EndFacts f = facts_of_pair(machine, &gpu, &hca, platform);
    HcaCandidate c;
    c.hca = static_cast<int>(i);
    // What a file hangs below a CPU without a PCI place is mostly an interface (a bond): it serves
    // where nothing else does.
    const bool placed = hca.data_path() != nullptr || f.from_platform_file;
    c.distance = placed ? f.data_direct.value_or(f.distance) : Distance::unknown;
    c.port_gbps = f.port_gbps;
    c.pcie_gbs = hca.data_path() == nullptr ? 0 : link_rate(machine, *hca.data_path());
    c.rail = f.rail;
    // A port whose state nobody told counts as active.
    c.active =
        hca.ports.empty() || std::any_of(hca.ports.begin(), hca.ports.end(), [](const HcaPort& p) {
          return p.state.value_or(PortState::active) == PortState::active;
        });
    c.management = hca.role == HcaRole::management;
    c.excluded = platform.ignores(hca.name);
    c.foreign = !hca.foreign.empty();
    c.bus = bus_number(hca.data_path());
    out.push_back(c);
  }
  return out;
}

std::vector<int> best_hcas(const Machine& machine, const PlatformFile& platform) {
  std::vector<std::vector<HcaCandidate>> rows;
  for (const Gpu& gpu : machine.gpus) rows.push_back(hca_candidates(machine, gpu, platform));
  return assign_hcas(std::move(rows));
}

std::uint64_t host_hash(const Machine& machine) { return hash64(machine.host.hostname); }

std::uint64_t topology_hash(const Machine& machine) {
  std::string text = machine.host.cpu.vendor + "/" +
                     std::to_string(machine.host.cpu.family.value_or(0)) + "/" +
                     std::to_string(machine.host.cpu.model.value_or(0));
  for (const Hca& hca : machine.hcas) text += " " + hca.name;
  for (const Gpu& gpu : machine.gpus) {
    text += " " + gpu.pci.bus.text();
    for (const Hca& hca : machine.hcas)
      text += " " + std::string(name_of(gpu_to_hca(machine, gpu, hca).distance));
  }
  return hash64(text);
}

}  // namespace twinpath
