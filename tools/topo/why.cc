#include "tools/topo/why.h"

#include <algorithm>
#include <cctype>

#include "tools/topo/acs.h"
#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {
namespace {

std::string hops_text(int n) { return n == 1 ? "1 bridge" : std::to_string(n) + " bridges"; }

// "sysfs + hwloc agree"; the first line names them in full.
std::string source_text(const Machine& m) {
  std::vector<std::string> kinds;
  for (const std::string& s : m.sources)
    if (!s.starts_with("no ")) kinds.push_back(s.substr(0, s.find(' ')));
  std::string out = joined(kinds, " + ");
  if (kinds.size() > 1) out += m.has_warning("HWLOC_BLIND") ? " disagree, sysfs holds" : " agree";
  return out;
}

// What the ports add to their state.
std::string port_facts(const Hca& hca) {
  std::vector<std::string> parts;
  for (const HcaPort& p : hca.ports) {
    std::string s = "port " + std::to_string(p.number);
    if (p.gids) s += ", " + std::to_string(*p.gids) + " GID(s)";
    if (!p.netdev.empty()) s += ", " + p.netdev;
    if (p.netdev_mtu) s += " MTU " + std::to_string(*p.netdev_mtu);
    parts.push_back(s);
  }
  return joined(parts, "; ");
}

std::string ancestor_text(const Report& r, const PairReport& p) {
  const Machine& m = r.machine;
  const Hca& hca = m.hcas[static_cast<std::size_t>(p.hca)];
  const PciFunction* path = hca.data_path();
  if (path == nullptr)
    return "the HCA has no place on PCIe" +
           (hca.numa ? ", and is at NUMA " + numa_text(hca.numa) : std::string());
  if (p.relation.lca) {
    return "nearest common: " + bridge_name(m, *p.relation.lca) + "; " +
           hops_text(p.relation.bridges_a) + " on the GPU's side, " +
           hops_text(p.relation.bridges_b) + " on the HCA's" +
           (p.relation.one_switch ? "; both levels are one physical switch" : "");
  }
  const auto& gpu = m.gpus[static_cast<std::size_t>(p.gpu)].pci;
  return "no common bridge; GPU at NUMA " + numa_text(gpu.numa) + ", HCA at " +
         numa_text(path->numa);
}

std::string place_text(const Machine& m, const PciFunction& f) {
  std::string out = f.bus.text() + ", NUMA " + numa_text(f.numa);
  const auto up = switch_above(m, f);
  out += up ? ", below " + bridge_name(m, *up) : ", below no switch";
  return out + ", " + link_text(f.link);
}

WhySection placement(const Report& r, const PairReport& p) {
  const Machine& m = r.machine;
  const Gpu& gpu = m.gpus[static_cast<std::size_t>(p.gpu)];
  const Hca& hca = m.hcas[static_cast<std::size_t>(p.hca)];
  WhySection s{"where they are", {}};
  const std::string source = source_text(m);
  s.lines.push_back({"sources", "", "", joined(m.sources, "; "), "", ""});
  s.lines.push_back(
      {"gpu", gpu_name(gpu), "", gpu_model(gpu) + " at " + place_text(m, gpu.pci), "", source});
  s.lines.push_back(
      {"hca", hca.name, "",
       hca_model(hca) + (hca.pci           ? " at " + place_text(m, *hca.pci)
                         : hca.data_direct ? std::string(", its physical function not told")
                                           : std::string(" without a place on PCIe")),
       "", source});
  if (hca.data_direct)
    s.lines.push_back({"data path", "data direct", "DD_USED",
                       "function " + place_text(m, *hca.data_direct) +
                           "; the physical function alone would be " +
                           std::string(name_of(p.relation.physical_function)),
                       "", source});
  s.lines.push_back(
      {"ports", ports_text(hca), "", port_facts(hca), "", has_host_facts(m) ? "sysfs" : source});
  s.lines.push_back(
      {"class", std::string(name_of(p.relation.distance)), "", ancestor_text(r, p), "", source});
  if (p.facts.from_platform_file)
    s.lines.push_back({"class", std::string(name_of(p.distance())), "", "the platform file says so",
                       "", "TWINPATH_PLATFORM_FILE"});
  s.lines.push_back(
      {"NCCL's class", p.nccl, "", "as NCCL would print it (no NODE, no SOCK)", "", "computed"});
  const AcsView acs = acs_view(m, gpu, hca);
  s.lines.push_back({"acs",
                     acs.verdict == Verdict::ok    ? "fine"
                     : acs.verdict == Verdict::bad ? "redirects"
                                                   : "unknown",
                     acs.verdict == Verdict::bad ? "GDR_ACS" : "", acs.text,
                     acs.verdict == Verdict::bad ? remedy(Reason::gdr_acs, {}) : "",
                     m.host.extended_config == true ? "config space" : ""});
  const IommuView iommu = iommu_view(m, gpu, hca);
  s.lines.push_back({"iommu", iommu.text, "", "", "", has_host_facts(m) ? "/sys/class/iommu" : ""});
  const bool tried = !p.facts.probes.gdr_untried();
  s.lines.push_back({"registration",
                     p.record.can(kCanLand) ? (tried ? "works" : "expected")
                                            : (tried ? "refused" : "not expected"),
                     "", gdr_basis(p), "", tried ? "probe" : ""});
  return s;
}

WhySection choice(const Report& r, const PairReport& p) {
  const Machine& m = r.machine;
  const GpuReport& g = r.gpus[static_cast<std::size_t>(p.gpu)];
  WhySection s{"the choice for " + gpu_name(m.gpus[static_cast<std::size_t>(p.gpu)]), {}};
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    const HcaChoice& c = g.order[i];
    const PairReport& other = r.pair(p.gpu, c.hca);
    const bool chosen = g.hca == c.hca, asked = c.hca == p.hca;
    if (!chosen && !asked) continue;
    const std::string place = std::to_string(i + 1) + " of " + std::to_string(g.order.size());
    std::string fact = class_text(other) + ", " +
                       (other.facts.pcie_gbs > 0 ? number(other.facts.pcie_gbs, 0) : "?") +
                       " GB/s PCIe, " + rates_text(m.hcas[static_cast<std::size_t>(c.hca)]) +
                       " Gb/s port, place " + place;
    if (chosen && i > 0) fact += "; those before it serve other GPUs already";
    s.lines.push_back({m.hcas[static_cast<std::size_t>(c.hca)].name,
                       chosen                      ? "used"
                       : c.refused == Reason::none ? "not the best"
                                                   : "never used",
                       c.refused == Reason::none ? "" : std::string(code_of(c.refused)), fact, "",
                       "class, then rate, then load, then bus id"});
  }
  return s;
}

WhySection decisions(const std::string& title, const Direction& d, const Outcome& runs,
                     const PlacementRecord& from, const PlacementRecord& to, const EndNames& sender,
                     const EndNames& receiver) {
  const std::string mode = runs.mode ? std::string(name_of(*runs.mode)) : "none";
  WhySection s{title + ": " + mode, {}};
  if (runs.reason != Reason::none) {
    // The lines below are about what could be, so the difference comes first.
    if (runs.mode != d.mode)
      s.title += " (the hardware allows " + std::string(name_of(d.mode)) + ")";
    const std::vector<Fact> facts{{"gpu", sender.gpu},
                                  {"hca", sender.hca},
                                  {"pf_class", std::string(name_of(from.pf_distance))}};
    s.lines.push_back({"this version", mode, std::string(code_of(runs.reason)),
                       sentence(runs.reason, facts), remedy(runs.reason, facts), ""});
  }
  for (const Explanation& e : explain(d, from, to, sender, receiver)) {
    std::string code = e.rule;
    if (!e.code.empty() && e.code != "NONE") code += (code.empty() ? "" : " ") + e.code;
    std::string fact = e.code == "NONE" ? "" : e.sentence;
    if (sender.host != receiver.host) fact += " [" + e.where + "]";
    s.lines.push_back({e.part, e.result, code, fact, e.remedy, ""});
  }
  return s;
}

// Whether `text` is `name`, ignoring case.
bool same(const std::string& text, const std::string& name) {
  return text.size() == name.size() &&
         std::equal(text.begin(), text.end(), name.begin(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) ==
                  std::tolower(static_cast<unsigned char>(b));
         });
}

// How completions reach kernels; nothing where an adapter writes them, and by default.
void add_completions(const Report& r, const Outcome& runs, WhySection& s) {
  const Config& config = r.settings.config;
  if (config.gin_cq != QueuePlace::gpu || !runs.mode || *runs.mode == Mode::gda || !r.gdrcopy)
    return;
  const bool through = config.gdrcopy && r.gdrcopy->usable;
  s.lines.push_back({"completions", "GPU memory", "",
                     through
                         ? "through GDRCopy: " + r.gdrcopy->text
                         : "by copies, not through GDRCopy: " +
                               (config.gdrcopy ? r.gdrcopy->text : "NCCL_GDRCOPY_ENABLE is not 1"),
                     "", "TWINPATH_GIN_CQ"});
}

}  // namespace

std::vector<WhySection> why(const Report& r, int gpu, int hca, const Report* peer) {
  const PairReport& p = r.pair(gpu, hca);
  std::vector<WhySection> out{placement(r, p), choice(r, p)};
  const EndNames here = names_of(r, gpu, hca);
  if (peer == nullptr || peer->gpus.empty()) {
    PlacementRecord like = p.record;
    like.host ^= 1;
    out.push_back(decisions("NCCL, host-driven, to a peer placed alike", p.host, p.host_runs,
                            p.record, like, here, here));
    out.push_back(decisions("GPU-initiated, to a peer placed alike", p.device, p.device_runs,
                            p.record, like, here, here));
    add_completions(r, p.device_runs, out.back());
    return out;
  }
  const auto other = static_cast<std::size_t>(gpu) % peer->gpus.size();
  const PeerPair pair = pair_with(r, gpu, hca, *peer, static_cast<int>(other));
  const PlacementRecord& theirs = pair.theirs.hardware;
  EndNames there = pair.there;
  if (there.host == here.host) there.host += " (peer)";
  const std::string to = there.host + " " + there.gpu + " " + there.hca;
  const auto both = [&](const char* use, const Decision& d, const Runs& runs) {
    out.push_back(decisions(std::string(use) + ", to " + to, d.send, runs.send, p.record, theirs,
                            here, there));
    out.push_back(decisions(std::string(use) + ", from " + to, d.recv, runs.recv, theirs, p.record,
                            there, here));
  };
  both("NCCL, host-driven", pair.host, pair.host_runs);
  both("GPU-initiated", pair.device, pair.device_runs);
  add_completions(r, pair.device_runs.send, out[out.size() - 2]);
  return out;
}

std::string why_text(const std::vector<WhySection>& sections) {
  std::string out;
  for (const WhySection& s : sections) {
    out += wrapped(s.title, 2);
    for (const WhyLine& l : s.lines) {
      std::string line = "  " + padded(l.part, 13) + " " + padded(l.result, 12) + " ";
      if (!l.code.empty())
        line += " " + l.code + (l.fact.empty() ? "" : ": ");
      else if (!l.fact.empty())
        line += " ";
      line += l.fact;
      if (!l.remedy.empty()) line += " -> " + l.remedy;
      if (!l.source.empty()) line += "  [" + l.source + "]";
      line.erase(line.find_last_not_of(' ') + 1);
      out += wrapped(line, 30);
    }
  }
  return out;
}

std::optional<int> find_gpu(const Machine& machine, const std::string& name, std::string& error) {
  const auto bus = parse_bus_id(name);
  for (const Gpu& g : machine.gpus) {
    if (same(name, gpu_name(g)) || name == std::to_string(g.index) || (bus && g.pci.bus == *bus))
      return g.index;
  }
  error = "GPU '" + name + "' does not exist; " +
          (machine.gpus.empty() ? std::string("this machine shows no GPU")
                                : "there are GPU0 to GPU" +
                                      std::to_string(machine.gpus.size() - 1) + ", also by bus id");
  return std::nullopt;
}

std::optional<int> find_hca(const Machine& machine, const std::string& name, std::string& error) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < machine.hcas.size(); ++i) {
    const Hca& h = machine.hcas[i];
    if (h.name == name || (h.pci && h.pci->bus.text() == name)) return static_cast<int>(i);
    if (i < 16) names.push_back(h.name);
  }
  if (machine.hcas.size() > 16) names.emplace_back("...");
  error = "HCA '" + name + "' does not exist; " +
          (names.empty() ? std::string("this machine shows no HCA")
                         : "there are " + joined(names, ", "));
  return std::nullopt;
}

}  // namespace twinpath::tools::topo
