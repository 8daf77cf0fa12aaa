#include "tools/topo/json.h"

#include <cmath>

#include "tools/common/circumstances.h"
#include "tools/topo/acs.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
// One digit after the point: sources differ in the digits after it.
Json rate(std::optional<double> gbytes) {
  if (!gbytes || *gbytes <= 0) return nullptr;
  return std::round(*gbytes * 10) / 10;
}
Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json link(const PcieLink& l) {
  return {{"gbs", rate(l.now())},
          {"max_gbs", rate(l.at_most())},
          {"gts", or_null(l.gts)},
          {"width", or_null(l.width)},
          {"degraded", l.gts && l.max_gts ? Json(l.degraded()) : Json(nullptr)}};
}
std::string hex16(std::uint64_t v) {
  char out[32];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(v));
  return out;
}

Json node_json(const Machine& m) {
  const HostFacts& h = m.host;
  return {{"name", text_or_null(h.hostname)},
          {"product", text_or_null(h.product)},
          {"vendor", text_or_null(h.vendor)},
          {"kernel", text_or_null(h.kernel)},
          {"cpu", cpu_text(h.cpu)},
          {"virtual_machine", or_null(h.virtual_machine)},
          {"iommu_on", or_null(h.iommu_on)},
          {"nvidia_driver", or_null(h.nvidia_driver)},
          {"nvidia_open", or_null(h.nvidia_open)},
          {"peermem", or_null(h.peermem)},
          {"acs_readable", or_null(h.extended_config)},
          {"memlock", or_null(h.memlock)},
          {"uverbs", or_null(h.uverbs)}};
}

Json gpu_json(const Machine& m, const Gpu& g) {
  const auto up = switch_above(m, g.pci);
  return {{"index", g.index},
          {"cuda_index", or_null(g.cuda_index)},
          {"bus", g.pci.bus.text()},
          {"name", gpu_model(g)},
          {"numa", or_null(g.pci.numa)},
          {"cc", or_null(g.compute_capability)},
          {"c2c_node", or_null(g.c2c_node)},
          {"served", served(g)},
          {"switch",
           up ? Json(m.bridges[static_cast<std::size_t>(*up)].pci.bus.text()) : Json(nullptr)},
          {"pcie", link(g.pci.link)},
          {"caps", {{"gdr", or_null(g.gdr)}, {"nvlinks", or_null(g.nvlinks)}}}};
}

Json hca_json(const Machine& m, const Hca& h) {
  Json ports = Json::array();
  for (const HcaPort& p : h.ports)
    ports.push_back({{"port", p.number},
                     {"gbit", or_null(p.gbps)},
                     {"layer", p.layer ? Json(twinpath::name_of(*p.layer)) : Json(nullptr)},
                     {"state", p.state ? Json(twinpath::name_of(*p.state)) : Json(nullptr)},
                     {"mtu", or_null(p.netdev_mtu)}});
  const PciFunction* path = h.data_path();
  const auto up = path == nullptr ? std::nullopt : switch_above(m, *path);
  const auto& card = h.sys_image_guid ? h.sys_image_guid : h.node_guid;
  return {{"name", h.name},
          {"bus", h.pci ? Json(h.pci->bus.text()) : Json(nullptr)},
          {"data_path_bus", path != nullptr ? Json(path->bus.text()) : Json(nullptr)},
          {"kind", twinpath::name_of(h.kind)},
          {"model", hca_model(h)},
          {"transport", h.foreign.empty() ? Json(nullptr) : Json(h.foreign)},
          {"role", twinpath::name_of(h.role)},
          {"role_reason", text_or_null(h.role_reason)},
          {"numa", or_null(numa_of(h))},
          {"switch",
           up ? Json(m.bridges[static_cast<std::size_t>(*up)].pci.bus.text()) : Json(nullptr)},
          {"pcie", path != nullptr ? link(path->link) : Json(nullptr)},
          {"ports", std::move(ports)},
          {"card", card ? Json(hex16(hash64(hex16(*card)))) : Json(nullptr)}};
}

Json plan(const EndPlan& p) {
  const Json most = p.direct_max == kAnySize ? Json(nullptr) : Json(p.direct_max);
  return {{"mode", p.direct_max == 0 ? "staged" : "direct"},
          {"direct_max", most},
          {"rule", name_of(p.rule)},
          {"reason", code_of(p.reason)}};
}
// "mode" is what this version does, null for nothing; "hardware" what the decision would allow.
void put_issue(Json& j, const Direction& d, const Outcome& runs) {
  j["mode"] = runs.mode ? Json(name_of(*runs.mode)) : Json(nullptr);
  j["reason"] = runs.reason == Reason::none ? Json(nullptr) : Json(code_of(runs.reason));
  j["hardware"] = {
      {"mode", name_of(d.mode)},
      {"issue", {{"rule", name_of(d.issue_rule)}, {"reason", code_of(d.issue_reason)}}},
      {"next", d.need == Reason::none
                   ? Json(nullptr)
                   : Json({{"mode", name_of(d.next)}, {"needs", Json::array({code_of(d.need)})}})}};
}

Json path_json(const Machine& m, const PairReport& p) {
  Json out = Json::array();
  const PciFunction* f = m.hcas[static_cast<std::size_t>(p.hca)].data_path();
  if (f == nullptr || !p.relation.lca) return out;
  const auto bus = [&](int b) { return m.bridges[static_cast<std::size_t>(b)].pci.bus.text(); };
  for (const int b : ancestors(m, m.gpus[static_cast<std::size_t>(p.gpu)].pci.parent)) {
    out.push_back(bus(b));
    if (b == *p.relation.lca) break;
  }
  std::vector<std::string> down;
  for (const int b : ancestors(m, f->parent)) {
    if (b == *p.relation.lca) break;
    down.push_back(bus(b));
  }
  for (auto it = down.rbegin(); it != down.rend(); ++it) out.push_back(*it);
  return out;
}

Json verdict(Verdict v, const std::string& text) {
  return {{"known", v != Verdict::unknown},
          {"fine", v == Verdict::unknown ? Json(nullptr) : Json(v == Verdict::ok)},
          {"text", text}};
}

Json pair_json(const Report& r, const PairReport& p) {
  const Machine& m = r.machine;
  const Gpu& gpu = m.gpus[static_cast<std::size_t>(p.gpu)];
  const Hca& hca = m.hcas[static_cast<std::size_t>(p.hca)];
  const AcsView acs = acs_view(m, gpu, hca);
  const IommuView iommu = iommu_view(m, gpu, hca);
  Json j{{"gpu", p.gpu},
         {"hca", hca.name},
         {"class", name_of(p.distance())},
         {"platform_file", p.facts.from_platform_file},
         {"class_pf", name_of(p.relation.physical_function)},
         {"class_nccl", p.nccl},
         {"lca", p.relation.lca
                     ? Json(m.bridges[static_cast<std::size_t>(*p.relation.lca)].pci.bus.text())
                     : Json(nullptr)},
         {"path", path_json(m, p)},
         {"agree", m.sources.size() > 1 ? Json(!m.has_warning("HWLOC_BLIND")) : Json(nullptr)},
         {"gbs", rate(p.facts.pcie_gbs)},
         {"acs", verdict(acs.verdict, acs.text)},
         {"iommu", verdict(iommu.verdict, iommu.text)},
         {"gdr", gdr_basis(p)},
         {"write", plan(p.host_runs.by.landing)},
         {"read", plan(p.host_runs.by.source)}};
  put_issue(j, p.device, p.device_runs);
  j["host_driven"] = Json::object();
  put_issue(j["host_driven"], p.host, p.host_runs);
  return j;
}

Json direction_json(const Direction& d, const Outcome& runs) {
  Json j{{"source", plan(runs.by.source)}, {"landing", plan(runs.by.landing)}};
  put_issue(j, d, runs);
  return j;
}

Json one_probe(const Probe& p) {
  return {{"answer", name_of(p.answer)},
          {"error", p.error == 0 ? Json(nullptr) : Json(p.error)},
          {"reason", p.reason == Reason::none ? Json(nullptr) : Json(code_of(p.reason))},
          {"note", p.note}};
}

}  // namespace

std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json report_json(const Report& r) {
  const Machine& m = r.machine;
  Json j{{"schema", json_schema("twinpath-topo", 3)}, {"node", node_json(m)}};
  j["gpus"] = j["hcas"] = j["pairs"] = j["selection"] = j["not_used"] = j["warnings"] =
      Json::array();
  for (const Gpu& g : m.gpus) j["gpus"].push_back(gpu_json(m, g));
  for (const Hca& h : m.hcas) j["hcas"].push_back(hca_json(m, h));
  for (const PairReport& p : r.pairs) j["pairs"].push_back(pair_json(r, p));
  const auto name = [&](int h) { return m.hcas[static_cast<std::size_t>(h)].name; };
  for (const GpuReport& g : r.gpus) {
    Json equals = Json::array(), order = Json::array();
    for (const int h : g.equals) equals.push_back(name(h));
    for (const HcaChoice& c : g.order)
      if (c.refused == Reason::none) order.push_back(name(c.hca));
    j["selection"].push_back({{"gpu", g.gpu},
                              {"hca", g.hca ? Json(name(*g.hca)) : Json(nullptr)},
                              {"equal", std::move(equals)},
                              {"order", std::move(order)}});
  }
  for (const LeftOut& l : r.left_out)
    j["not_used"].push_back({{"hca", name(l.hca)}, {"code", code_of(l.reason)}, {"text", l.text}});
  for (const TopologyWarning& w : m.warnings)
    j["warnings"].push_back({{"code", w.code}, {"text", w.text}, {"remedy", w.remedy}});
  j["sources"] = m.sources;
  return j;
}

Json peers_json(const Report& peer, const std::vector<PeerPair>& pairs) {
  Json j{{"node", node_name(peer.machine)}, {"pairs", Json::array()}};
  const auto both = [](const Decision& d, const Runs& runs) {
    return Json{{"send", direction_json(d.send, runs.send)},
                {"receive", direction_json(d.recv, runs.recv)}};
  };
  for (const PeerPair& p : pairs)
    j["pairs"].push_back({{"gpu", p.gpu},
                          {"hca", p.hca ? Json(p.here.hca) : Json(nullptr)},
                          {"peer_gpu", p.peer_gpu},
                          {"peer_hca", p.peer_hca ? Json(p.there.hca) : Json(nullptr)},
                          {"host_driven", both(p.host, p.host_runs)},
                          {"gpu_initiated", both(p.device, p.device_runs)}});
  return j;
}

Json checks_json(const Checks& checks, bool strict) {
  Json items = Json::array();
  for (const CheckItem& i : checks.items())
    items.push_back({{"group", i.group},
                     {"check", i.id},
                     {"level", name_of(i.level)},
                     {"objects", i.objects},
                     {"fact", i.fact},
                     {"remedy", i.remedy}});
  return {{"schema", json_schema("twinpath-topo-check", 2)},
          {"checks", std::move(items)},
          {"ok", checks.count(Level::ok)},
          {"warn", checks.count(Level::warn)},
          {"fail", checks.count(Level::fail)},
          {"unknown", checks.count(Level::unknown)},
          {"exit", checks.exit_code(strict)}};
}

Json why_json(const std::vector<WhySection>& sections) {
  Json out = Json::array();
  for (const WhySection& s : sections) {
    Json lines = Json::array();
    for (const WhyLine& l : s.lines)
      lines.push_back({{"part", l.part},
                       {"result", l.result},
                       {"code", l.code},
                       {"fact", l.fact},
                       {"remedy", l.remedy},
                       {"source", l.source}});
    out.push_back({{"title", s.title}, {"lines", std::move(lines)}});
  }
  return {{"schema", json_schema("twinpath-topo-why", 2)}, {"sections", std::move(out)}};
}

Json probe_json(const Report& r) {
  Json out = Json::array();
  for (const auto& [pair, p] : r.settings.probes)
    out.push_back({{"gpu", pair.first},
                   {"hca", pair.second},
                   {"dmabuf", one_probe(p.dmabuf)},
                   {"peermem", one_probe(p.peermem)},
                   {"doorbell", one_probe(p.uar)},
                   {"atomics", one_probe(p.atomics)}});
  return {{"schema", json_schema("twinpath-topo-probe", 2)}, {"probes", std::move(out)}};
}

}  // namespace twinpath::tools::topo
