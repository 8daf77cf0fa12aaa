#include "tools/topo/report.h"

#include <algorithm>

#include "tools/topo/names.h"
#include "topology/decide/record_machine.h"

namespace twinpath::tools::topo {
namespace {

struct Ends {
  const PlacementRecord& from;
  const PlacementRecord& to;
};

// What becomes of a direction: `refused` stands before all that the ends could do.
Outcome run(Reason refused, const Direction& hardware, Ends built, Use use, bool software) {
  Outcome out;
  out.by = decide_direction(built.from, built.to, use);
  if (refused != Reason::none) {
    out.reason = refused;
    return out;
  }
  const Executed e = executed(out.by, built.from, built.to, use, software);
  out.mode = e.mode;
  out.reason = e.reason;
  const bool same = out.by.mode == hardware.mode && out.by.source == hardware.source &&
                    out.by.landing == hardware.landing;
  // The facts differ in the data-direct function only.
  if (!same && out.mode && e.reason != Reason::not_asked) out.reason = Reason::dd_off;
  return out;
}

bool is_soft(const Report& r, std::optional<int> hca) {
  return hca && r.machine.hcas[static_cast<std::size_t>(*hca)].kind == HcaKind::soft;
}

PairReport make_pair_report(const Report& r, const Gpu& gpu, int hca_index) {
  const Hca& hca = r.machine.hcas[static_cast<std::size_t>(hca_index)];
  PairReport p;
  p.gpu = gpu.index;
  p.hca = hca_index;
  p.relation = gpu_to_hca(r.machine, gpu, hca);
  p.nccl = std::string(nccl_letter(r.machine, gpu, hca));
  p.facts = pair_facts(r.machine, &gpu, &hca, r.settings.platform);
  if (const auto it = r.settings.probes.find({gpu.index, hca.name}); it != r.settings.probes.end())
    p.facts.probes = it->second;
  p.facts.data_direct_refused =
      p.facts.data_direct && p.facts.probes.data_direct.answer == Answer::no;
  const bool registers = p.facts.probes.gdr_untried() ? p.facts.gdr_expected : p.facts.probes.gdr();
  p.facts.stages = true;
  p.facts.gpu_queues = p.facts.devx && registers;
  const auto& ordered = r.settings.ordered_gpus;
  p.facts.gpu_ordered = std::find(ordered.begin(), ordered.end(), gpu.index) != ordered.end();
  p.record = make_record(p.facts, end_settings(r.settings.config, -1));
  EndFacts used = p.facts;
  if (r.settings.config.ib_data_direct == 0) without_data_direct(used);
  p.built = make_record(used, end_settings(r.settings.config, -1));
  // Nothing was tried, but what was read tells why it would fail.
  if (p.facts.probes.gdr_untried() && !p.facts.gdr_expected && p.facts.hca) {
    for (Reason* reason : {&p.record.land.reason, &p.record.source.reason, &p.built.land.reason,
                           &p.built.source.reason})
      if (*reason == Reason::gdr_untried) *reason = Reason::gdr_none;
  }
  PlacementRecord like = p.record, built_like = p.built;
  like.host ^= 1;  // another host, otherwise the same
  built_like.host ^= 1;
  p.host = decide_direction(p.record, like, kHostUse);
  p.device = decide_direction(p.record, like, kDeviceUse);
  const bool software = hca.kind == HcaKind::soft;
  const Reason refused = unserved(r, gpu.index, hca_index);
  p.host_runs = run(refused, p.host, {p.built, built_like}, kHostUse, software);
  p.device_runs = run(refused, p.device, {p.built, built_like}, kDeviceUse, software);
  return p;
}

// Candidates carry the class of the platform file where that has one.
std::vector<GpuReport> choose(const Report& r) {
  std::vector<GpuReport> out;
  const std::vector<int> best = best_hcas(r.machine, r.settings.platform);
  for (const Gpu& gpu : r.machine.gpus) {
    GpuReport g;
    g.gpu = gpu.index;
    const int chosen = best[static_cast<std::size_t>(gpu.index)];
    if (chosen >= 0) g.hca = chosen;
    const auto candidates = hca_candidates(r.machine, gpu, r.settings.platform);
    g.order = order_hcas(candidates);
    for (const HcaChoice& c : g.order) {
      if (!g.hca || c.hca == *g.hca || c.refused != Reason::none) continue;
      if (candidates[static_cast<std::size_t>(c.hca)].distance ==
          candidates[static_cast<std::size_t>(*g.hca)].distance)
        g.equals.push_back(c.hca);
    }
    std::sort(g.equals.begin(), g.equals.end());
    out.push_back(std::move(g));
  }
  return out;
}

std::vector<LeftOut> find_left_out(const Report& r) {
  std::vector<LeftOut> out;
  // A machine without GPUs still shows which HCAs would not be used.
  const std::vector<HcaCandidate> candidates = hca_candidates(
      r.machine, r.machine.gpus.empty() ? Gpu{} : r.machine.gpus.front(), r.settings.platform);
  for (const HcaChoice& c : order_hcas(candidates)) {
    if (c.refused == Reason::none) continue;
    const Hca& hca = r.machine.hcas[static_cast<std::size_t>(c.hca)];
    const Fact facts[] = {{"hca", "it"}, {"transport", hca.foreign}};
    std::string text = sentence(c.refused, facts);
    if (c.refused == Reason::mgmt_nic)
      text =
          "management adapter: " + (hca.role_reason.empty() ? "narrow PCIe link" : hca.role_reason);
    if (c.refused == Reason::port_down) text = "no active port (" + ports_text(hca) + ")";
    if (c.refused == Reason::hca_excluded) text = "left out by the platform file";
    out.push_back({c.hca, c.refused, text});
  }
  return out;
}

}  // namespace

const PairReport& Report::pair(int gpu, int hca) const {
  return pairs[static_cast<std::size_t>(gpu) * machine.hcas.size() + static_cast<std::size_t>(hca)];
}

Report make_report(Machine machine, Settings settings) {
  Report r{std::move(machine), std::move(settings), {}, {}, {}};
  for (const Gpu& gpu : r.machine.gpus)
    for (std::size_t h = 0; h < r.machine.hcas.size(); ++h)
      r.pairs.push_back(make_pair_report(r, gpu, static_cast<int>(h)));
  r.gpus = choose(r);
  r.left_out = find_left_out(r);
  return r;
}

Records records_of(const Report& report, int gpu, std::optional<int> hca) {
  if (hca) {
    const PairReport& p = report.pair(gpu, *hca);
    return {p.record, p.built};
  }
  PlacementRecord none;
  none.host = host_hash(report.machine);
  return {none, none};
}

EndNames names_of(const Report& report, int gpu, std::optional<int> hca) {
  return {node_name(report.machine), gpu_name(report.machine.gpus[static_cast<std::size_t>(gpu)]),
          hca ? report.machine.hcas[static_cast<std::size_t>(*hca)].name : "no HCA"};
}

bool served(const Gpu& gpu) { return !gpu.amd; }

Reason unserved(const Report& report, int gpu, std::optional<int> hca) {
  if (!served(report.machine.gpus[static_cast<std::size_t>(gpu)])) return Reason::gpu_vendor;
  if (hca) {
    const Hca& h = report.machine.hcas[static_cast<std::size_t>(*hca)];
    return h.foreign.empty() ? Reason::none : Reason::hca_transport;
  }
  return report.left_out.empty() ? Reason::port_down : report.left_out.front().reason;
}

std::string runs_text(const Outcome& runs) {
  const std::string why =
      runs.reason == Reason::none ? rules_text(runs.by) : std::string(code_of(runs.reason));
  return (runs.mode ? std::string(name_of(*runs.mode)) : "none") + " (" + why + ")";
}

PeerPair pair_with(const Report& local, int gpu, std::optional<int> hca, const Report& peer,
                   int peer_gpu) {
  PeerPair p;
  p.gpu = gpu;
  p.peer_gpu = peer_gpu;
  p.hca = hca;
  p.peer_hca = peer.gpus[static_cast<std::size_t>(p.peer_gpu)].hca;
  const Records here = records_of(local, gpu, hca);
  Records& there = p.theirs = records_of(peer, p.peer_gpu, p.peer_hca);
  // Two captures of one machine.
  for (PlacementRecord* r : {&there.hardware, &there.built})
    if (r->host == here.hardware.host) r->host ^= 1;
  p.host = decide(here.hardware, there.hardware, kHostUse);
  p.device = decide(here.hardware, there.hardware, kDeviceUse);
  Reason refused = unserved(local, p.gpu, p.hca);
  if (refused == Reason::none) refused = unserved(peer, p.peer_gpu, p.peer_hca);
  const bool software = is_soft(local, p.hca) && is_soft(peer, p.peer_hca);
  const auto runs = [&](const Decision& d, Use use) {
    return Runs{run(refused, d.send, {here.built, there.built}, use, software),
                run(refused, d.recv, {there.built, here.built}, use, software)};
  };
  p.host_runs = runs(p.host, kHostUse);
  p.device_runs = runs(p.device, kDeviceUse);
  p.here = names_of(local, p.gpu, p.hca);
  p.there = names_of(peer, p.peer_gpu, p.peer_hca);
  return p;
}

std::vector<PeerPair> with_peer(const Report& local, const Report& peer) {
  std::vector<PeerPair> out;
  if (local.gpus.empty() || peer.gpus.empty()) return out;
  const std::size_t n = std::max(local.gpus.size(), peer.gpus.size());
  for (std::size_t i = 0; i < n; ++i) {
    const int gpu = static_cast<int>(i % local.gpus.size());
    const auto hca = local.gpus[static_cast<std::size_t>(gpu)].hca;
    out.push_back(pair_with(local, gpu, hca, peer, static_cast<int>(i % peer.gpus.size())));
  }
  return out;
}

std::string class_text(const PairReport& pair) {
  const std::string name(name_of(pair.distance()));
  if (pair.facts.from_platform_file) return name + "!";
  return name + (pair.relation.data_direct ? "*" : "");
}

std::string rules_text(const Direction& d) {
  return std::string(name_of(d.issue_rule)) + " " + std::string(name_of(d.source.rule)) + " " +
         std::string(name_of(d.landing.rule));
}

std::string gdr_basis(const PairReport& pair) {
  const ProbeResults& p = pair.facts.probes;
  if (p.dmabuf.answer == Answer::yes) return "probed: dma-buf registration works";
  if (p.peermem.answer == Answer::yes) return "probed: registration through nvidia_peermem works";
  if (!p.gdr_untried()) return "probed: " + p.gdr_refusal().note;
  return pair.facts.gdr_expected ? "not probed; nothing that was read speaks against it"
                                 : "not probed; driver and kernel speak against it";
}

}  // namespace twinpath::tools::topo
