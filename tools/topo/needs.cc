// What better modes lack, in the text of the matrix.
#include <map>

#include "tools/topo/acs.h"
#include "tools/topo/names.h"
#include "tools/topo/text.h"

namespace twinpath::tools::topo {
namespace {

std::string acs_ports(const Report& r, const PairReport& p) {
  const AcsView view = acs_view(r.machine, r.machine.gpus[static_cast<std::size_t>(p.gpu)],
                                r.machine.hcas[static_cast<std::size_t>(p.hca)]);
  return joined(view.ports, ", ");
}

struct Need {
  std::vector<int> gpus;
  const PairReport* first = nullptr;
  bool host = false, device = false;  // which uses
};
using Needs = std::map<std::pair<Mode, Reason>, Need>;

// What a better mode lacks, of modes that this version has, and what the hardware allows beyond.
void need_of(const PairReport& p, bool device, bool software, Needs& all) {
  const Direction& d = device ? p.device : p.host;
  const Outcome& runs = device ? p.device_runs : p.host_runs;
  std::optional<std::pair<Mode, Reason>> key;
  const Direction& by = runs.by;
  if (runs.reason == Reason::not_asked || runs.reason == Reason::dd_off) {
    if (runs.mode != d.mode) key.emplace(d.mode, runs.reason);
  } else if (runs.reason == Reason::none || !runs.mode) {
    const bool asked = gpu_issue_asked(p.record, p.record);
    const Mode best = best_built(device ? kDeviceUse : kHostUse, software, asked);
    if (by.need != Reason::none && by.next <= best) key.emplace(by.next, by.need);
  }
  if (!key) return;
  Need& n = all[*key];
  (device ? n.device : n.host) = true;
  if (n.gpus.empty() || n.gpus.back() != p.gpu) n.gpus.push_back(p.gpu);
  if (n.first == nullptr) n.first = &p;
}

}  // namespace

// Why not better, GPUs with the same cause in one line.
std::string needs_text(const Report& r) {
  Needs all;
  for (const GpuReport& g : r.gpus) {
    if (!g.hca || unserved(r, g.gpu, g.hca) != Reason::none) continue;
    const PairReport& p = r.pair(g.gpu, *g.hca);
    const bool software = r.machine.hcas[static_cast<std::size_t>(*g.hca)].kind == HcaKind::soft;
    for (const bool device : {false, true}) need_of(p, device, software, all);
  }
  std::string out;
  for (const auto& [key, need] : all) {
    const auto& [next, reason] = key;
    // With one GPU its names; of several the sentence speaks of "the GPU".
    std::vector<Fact> facts{{"class", std::string(name_of(need.first->distance()))},
                            {"pf_class", std::string(name_of(need.first->facts.distance))}};
    if (need.gpus.size() == 1) {
      const EndNames names = names_of(r, need.first->gpu, need.first->hca);
      facts.push_back({"gpu", names.gpu});
      facts.push_back({"hca", names.hca});
    }
    if (reason == Reason::gdr_acs) facts.push_back({"where", acs_ports(r, *need.first)});
    std::string line = "  GPU" + ranges(need.gpus) + "  " + std::string(name_of(next)) +
                       (need.device ? "" : " (host-driven)") + " lacks " +
                       std::string(code_of(reason)) + ": " + sentence(reason, facts);
    const std::string cure = remedy(reason, facts);
    if (!cure.empty()) line += " -> " + cure;
    out += wrapped(line, 8);
  }
  return out.empty() ? out : "better modes\n" + out;
}

}  // namespace twinpath::tools::topo
