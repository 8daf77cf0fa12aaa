#include "tools/topo/compare.h"

#include <algorithm>
#include <functional>
#include <set>

#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

// Hosts by the value that they have.
using Values = std::map<std::string, std::vector<std::string>>;

std::string text_of(const Values& values) {
  std::string out;
  for (const auto& [value, hosts] : values)
    out += (out.empty() ? "" : "; ") + few(hosts) + ": " + (value.empty() ? "not told" : value);
  return out;
}

void judge(const std::string& id, const std::string& object, const Values& values,
           const std::string& unit, const std::string& remedy, Checks& out) {
  if (values.empty()) return;
  if (values.size() == 1) {
    const std::string& value = values.begin()->first;
    if (!value.empty()) out.add(id, object, Level::ok, value + unit + " on all");
    return;
  }
  out.add(id, object, Level::warn, text_of(values), remedy);
}

void one_value(const std::vector<HostCard>& cards, const char* id, std::string HostCard::*value,
               const char* remedy, Checks& out) {
  Values values;
  for (const HostCard& c : cards) values[c.*value].push_back(c.name);
  judge(id, "", values, "", remedy, out);
}

void firmware(const std::vector<HostCard>& cards, Checks& out) {
  std::map<std::string, Values> models;
  for (const HostCard& c : cards)
    for (const HcaCard& h : c.hcas) {
      if (h.model.empty() || h.firmware.empty()) continue;
      auto& hosts = models[h.model][h.firmware];
      if (hosts.empty() || hosts.back() != c.name) hosts.push_back(c.name);
    }
  for (const auto& [model, values] : models)
    judge("firmware", model, values, "", "one release on all hosts", out);
}

void rails(const std::vector<HostCard>& cards, Checks& out) {
  Values counts;
  std::size_t most = 0;
  for (const HostCard& c : cards) {
    counts[std::to_string(c.rails.size())].push_back(c.name);
    most = std::max(most, c.rails.size());
  }
  judge("rails", "", counts, "",
        "see what each host found: a port down, another NCCL_IB_HCA; NCCL wants as many on all",
        out);
  struct Part {
    const char *id, *unit;
    std::string (*value)(const RailFacts&);
    const char* remedy;
  };
  constexpr Part kParts[] = {
      {"speed", " Gb/s",
       [](const RailFacts& r) { return number(r.mbps / 1000.0, r.mbps % 1000 == 0 ? 0 : 1); },
       "the slowest port holds up all: see its cable, module, switch port"},
      {"packets", " bytes", [](const RailFacts& r) { return std::to_string(r.mtu); },
       "one MTU on all interfaces and switch ports; the smaller one is used"},
      {"link-layer", "",
       [](const RailFacts& r) { return std::string(r.roce ? "RoCE" : "InfiniBand"); },
       "NCCL_IB_HCA with ports of one kind, in one order"}};
  for (std::size_t i = 0; i < most; ++i)
    for (const Part& p : kParts) {
      Values values;
      for (const HostCard& c : cards)
        if (i < c.rails.size()) values[p.value(c.rails[i])].push_back(c.name);
      judge(p.id, "rail " + std::to_string(i), values, p.unit, p.remedy, out);
    }
}

void settings(const std::vector<HostCard>& cards, Checks& out) {
  // Names of interfaces, files and places may well differ.
  static const std::set<std::string> kLocal{
      "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA",    "NCCL_DEBUG",          "NCCL_DEBUG_FILE",
      "NCCL_TOPO_FILE",     "NCCL_CONF_FILE", "TWINPATH_METRICS_DIR"};
  std::set<std::string> names;
  for (const HostCard& c : cards)
    for (const auto& [name, value] : c.environment)
      if (!kLocal.contains(name)) names.insert(name);
  bool differ = false;
  for (const std::string& name : names) {
    Values values;
    for (const HostCard& c : cards) {
      const auto it = c.environment.find(name);
      values[it == c.environment.end() ? "not set" : "'" + it->second + "'"].push_back(c.name);
    }
    if (values.size() < 2) continue;
    differ = true;
    judge("settings", name, values, "", "set all hosts alike, unless that is meant", out);
  }
  if (!differ) out.add("settings", "", Level::ok, "alike on all");
}

}  // namespace

void compare_cards(const std::vector<HostCard>& cards, Checks& out) {
  out.begin("all hosts");
  one_value(cards, "plugin", &HostCard::plugin, "install one version on all hosts", out);
  one_value(cards, "nccl", &HostCard::nccl, "NCCL wants one version in a job", out);
  one_value(cards, "driver", &HostCard::driver, "install one version on all hosts", out);
  one_value(cards, "kernel", &HostCard::kernel, "one version is easier to reason about", out);
  firmware(cards, out);
  rails(cards, out);
  settings(cards, out);
}

Checks check_hosts(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries) {
  Checks out;
  for (const HostCard& c : cards) {
    out.begin("host " + c.name);
    std::size_t fine = 0;
    for (const CheckItem& i : c.found) {
      if (i.level == Level::ok)
        ++fine;
      else
        out.add(i.id, i.objects.empty() ? "" : few(i.objects), i.level, i.fact, i.remedy);
    }
    out.add("itself", "", Level::ok, std::to_string(fine) + " checks OK");
  }
  compare_cards(cards, out);
  judge_tries(cards, tries, out);
  return out;
}

}  // namespace twinpath::tools::topo
