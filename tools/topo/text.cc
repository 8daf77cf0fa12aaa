#include "tools/topo/text.h"

#include <algorithm>
#include <map>
#include <set>

#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

std::string counted(std::size_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

// Three blanks apart, in lines that break between facts only.
std::string packed(const std::vector<std::string>& facts) {
  std::string out, line;
  for (const std::string& fact : facts) {
    if (!line.empty() && line.size() + 3 + fact.size() > kColumns) {
      out += line + "\n";
      line.clear();
    }
    line += (!line.empty() ? "   " : out.empty() ? "" : "  ") + fact;
  }
  return out + line + "\n";
}

std::string head(const Report& r) {
  const Machine& m = r.machine;
  const HostFacts& h = m.host;
  std::size_t nodes = 0;
  for (const NumaNode& n : m.numa_nodes) nodes += n.has_cpus ? 1u : 0u;
  std::string out = node_name(m) + "   " + counted(m.gpus.size(), "GPU") + "  " +
                    counted(m.hcas.size(), "HCA") + "  " + counted(nodes, "NUMA node") + "   " +
                    cpu_text(h.cpu);
  if (!h.product.empty()) out += "   " + h.product;
  const auto known = [](const std::optional<bool>& fact, const char* yes, const char* no) {
    return std::string(fact ? (*fact ? yes : no) : "not known");
  };
  std::string driver = "driver " + h.nvidia_driver.value_or("not known");
  if (h.nvidia_open) driver += *h.nvidia_open ? " (open)" : " (proprietary)";
  return wrapped(out, 2) +
         packed({driver, "kernel " + (h.kernel.empty() ? "not known" : h.kernel),
                 "virtual machine: " + known(h.virtual_machine, "yes", "no"),
                 "IOMMU: " + known(h.iommu_on, "on", "off"),
                 "ACS: " + known(h.extended_config, "read", "not readable (needs root)")});
}

// GPUs down and HCAs across where that fits, else the other way round, in blocks.
std::string classes(const Report& r) {
  const Machine& m = r.machine;
  std::size_t wide = 18;
  for (const Hca& h : m.hcas) wide += std::max<std::size_t>(h.name.size(), 5) + 2;
  std::vector<std::vector<std::string>> rows;
  if (wide <= kColumns) {
    std::vector<std::string> names{"", ""}, nodes{"", "NUMA"}, rates{"", "Gb/s"};
    for (const Hca& h : m.hcas) {
      names.push_back(h.name);
      nodes.push_back(hca_numa_text(h));
      rates.push_back(rates_text(h));
    }
    rows = {names, nodes};
    if (std::any_of(rates.begin() + 2, rates.end(), [](const auto& s) { return s != "?"; }))
      rows.push_back(rates);
    for (const Gpu& g : m.gpus) {
      std::vector<std::string> row{gpu_name(g), numa_text(g.pci.numa)};
      for (std::size_t h = 0; h < m.hcas.size(); ++h)
        row.push_back(class_text(r.pair(g.index, static_cast<int>(h))));
      rows.push_back(std::move(row));
    }
    return columns(rows, 2);
  }
  constexpr std::size_t kGpus = 8;  // beside each other
  std::string out;
  for (std::size_t first = 0; first < m.gpus.size(); first += kGpus) {
    const std::size_t end = std::min(first + kGpus, m.gpus.size());
    std::vector<std::string> names{"", "NUMA", "Gb/s"}, nodes{"", "", ""};
    for (std::size_t g = first; g < end; ++g) {
      names.push_back(gpu_name(m.gpus[g]));
      nodes.push_back(numa_text(m.gpus[g].pci.numa));
    }
    rows = {names, nodes};
    for (std::size_t h = 0; h < m.hcas.size(); ++h) {
      std::vector<std::string> row{m.hcas[h].name, hca_numa_text(m.hcas[h]), rates_text(m.hcas[h])};
      for (std::size_t g = first; g < end; ++g)
        row.push_back(class_text(r.pair(static_cast<int>(g), static_cast<int>(h))));
      rows.push_back(std::move(row));
    }
    out += columns(rows, 2);
  }
  return out;
}

std::string legend(const Report& r) {
  std::set<Distance> seen;
  bool star = false, by_file = false;
  for (const PairReport& p : r.pairs) {
    seen.insert(p.distance());
    by_file = by_file || p.facts.from_platform_file;
    star = star || p.relation.data_direct;
  }
  const std::map<Distance, std::string> kMeaning{
      {Distance::self, "SELF one device"},
      {Distance::pix, "PIX one switch"},
      {Distance::pxb, "PXB several switches"},
      {Distance::c2c, "C2C on the GPU's own CPU (NVLink-C2C)"},
      {Distance::phb, "PHB one host bridge"},
      {Distance::node, "NODE one NUMA node"},
      {Distance::sock, "SOCK one socket"},
      {Distance::sys, "SYS other socket"},
      {Distance::unknown, "UNK place not told"}};
  std::vector<std::string> parts;
  for (const Distance d : seen) parts.push_back(kMeaning.at(d));
  if (star) parts.push_back("* by the data-direct function, which this version does not use");
  if (by_file) parts.push_back("! by the platform file");
  return wrapped("  " + joined(parts, "; "), 2);
}

std::string rate_cell(const PairReport& p) {
  return p.facts.pcie_gbs > 0 ? number(p.facts.pcie_gbs, p.facts.pcie_gbs < 10 ? 1 : 0) : "?";
}

// The best HCA of each GPU, and below what is done by it: side by side they need 110 columns.
std::string choices(const Report& r) {
  const Machine& m = r.machine;
  std::vector<std::vector<std::string>> hcas{
      {"", "best HCA", "class", "PCIe GB/s", "port Gb/s", "equal"}};
  std::vector<std::vector<std::string>> modes{
      {"", "HCA", "NCCL, host-driven", "GPU-initiated", "HW allows"}};
  for (const GpuReport& g : r.gpus) {
    const std::string name = gpu_name(m.gpus[static_cast<std::size_t>(g.gpu)]);
    if (!g.hca) {
      hcas.push_back({name, "none", "-", "-", "-"});
      modes.push_back({name, "none", "none", "none", "-"});
      continue;
    }
    const PairReport& p = r.pair(g.gpu, *g.hca);
    const Hca& h = m.hcas[static_cast<std::size_t>(*g.hca)];
    hcas.push_back({name, h.name, class_text(p), rate_cell(p), rates_text(h),
                    g.equals.empty() ? "" : "+" + std::to_string(g.equals.size())});
    modes.push_back({name, h.name, runs_text(p.host_runs), runs_text(p.device_runs),
                     std::string(name_of(p.device.mode))});
  }
  return columns(hcas, 2) +
         wrapped(
             "what this version does with a peer that is placed alike (issue, source, landing "
             "rule)",
             0) +
         columns(modes, 2);
}

std::string unserved_gpus(const Report& r) {
  std::vector<int> gpus;
  for (const Gpu& g : r.machine.gpus)
    if (!served(g)) gpus.push_back(g.index);
  if (gpus.empty()) return {};
  const std::vector<Fact> facts{{"gpu", "it"}};
  return "GPUs not served\n" +
         wrapped("  GPU" + ranges(gpus) + "  " + std::string(code_of(Reason::gpu_vendor)) + ": " +
                     sentence(Reason::gpu_vendor, facts) + " -> " + remedy(Reason::gpu_vendor, {}),
                 8);
}

std::string rest(const Report& r) {
  std::string out = unserved_gpus(r);
  if (!r.left_out.empty()) out += "HCAs not used\n";
  // HCAs with one cause in one line: a cloud's machine has 32 of them.
  std::vector<std::pair<const LeftOut*, std::vector<std::string>>> causes;
  for (const LeftOut& l : r.left_out) {
    const auto same = [&](const auto& c) {
      return c.first->reason == l.reason && c.first->text == l.text;
    };
    auto it = std::find_if(causes.begin(), causes.end(), same);
    if (it == causes.end()) it = causes.insert(it, {&l, {}});
    it->second.push_back(r.machine.hcas[static_cast<std::size_t>(l.hca)].name);
  }
  for (const auto& [left, names] : causes) {
    std::string line =
        "  " + few(names) + "  " + std::string(code_of(left->reason)) + ": " + left->text;
    if (left->reason == Reason::hca_transport) line += " -> " + remedy(left->reason, {});
    out += wrapped(line, 8);
  }
  if (!r.machine.dma_functions.empty())
    out +=
        wrapped("  " + counted(r.machine.dma_functions.size(), "data-direct function") +
                    " of HCAs that no source told: the classes are those of the physical functions",
                8);
  for (const std::string& e : r.settings.platform.errors())
    out += wrapped("platform file: " + e, 8);
  std::map<std::string, std::vector<const TopologyWarning*>> by_code;
  for (const TopologyWarning& w : r.machine.warnings)
    if (w.code != "MGMT_NIC") by_code[w.code].push_back(&w);
  if (!by_code.empty()) out += "warnings (twinpath-topo check says more)\n";
  for (const auto& [code, list] : by_code) {
    std::string line = "  " + code + ": " + list.front()->text;
    if (list.size() > 1) line += " (and " + std::to_string(list.size() - 1) + " more)";
    if (!list.front()->remedy.empty()) line += " -> " + list.front()->remedy;
    out += wrapped(line, 8);
  }
  return out;
}

}  // namespace

std::string matrix_text(const Report& r) {
  std::string out = head(r);
  const bool blind = r.machine.has_warning("NO_PCI");
  if (r.machine.gpus.empty())
    out += blind ? "GPUs not known: PCI devices cannot be listed\n"
                 : "no GPU found: there is nothing to place\n";
  if (r.machine.hcas.empty())
    out += "no HCA found: GPUs of this node reach no other node by RDMA\n";
  if (!r.pairs.empty()) {
    out += classes(r) + legend(r);
    out += choices(r) + needs_text(r);
  } else if (!r.machine.hcas.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const Hca& h : r.machine.hcas)
      rows.push_back({h.name, h.data_path() == nullptr ? "not on PCIe" : h.data_path()->bus.text(),
                      hca_model(h), ports_text(h)});
    out += columns(rows, 2);
  } else {
    for (const Gpu& g : r.machine.gpus)
      out += "  " + gpu_name(g) + "  " + g.pci.bus.text() + "  " + gpu_model(g) + "\n";
  }
  return out + rest(r);
}

std::string peers_text(const Report& local, const Report& peer,
                       const std::vector<PeerPair>& pairs) {
  std::string out = "with " + node_name(peer.machine) + "\n";
  if (pairs.empty())
    return out + "  no pairs: " + (local.gpus.empty() ? "no GPU here" : "no GPU there") + "\n";
  std::vector<std::vector<std::string>> rows{{"here", "there", "driven by", "send", "receive"}};
  for (const PeerPair& p : pairs) {
    const auto name = [](const Outcome& e) {
      return e.mode ? std::string(name_of(*e.mode)) : std::string("none");
    };
    rows.push_back({p.here.gpu + " " + p.here.hca, p.there.gpu + " " + p.there.hca, "NCCL's host",
                    runs_text(p.host_runs.send), name(p.host_runs.recv)});
    rows.push_back({"", "", "the GPU", runs_text(p.device_runs.send), name(p.device_runs.recv)});
  }
  return out + columns(rows, 2);
}

}  // namespace twinpath::tools::topo
