// What the tried pairs of rails say of the network between the hosts.
#include <algorithm>

#include "tools/topo/compare.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

using Tries = std::vector<const PairTry*>;

const RailFacts& rail_of(const HostCard& c, int rail) {
  return c.rails.at(static_cast<std::size_t>(rail));
}

// All tries between two hosts.
struct Between {
  const HostCard *host, *peer;
  Tries tries;

  std::string here(const PairTry& t) const {
    return host->name + " " + rail_of(*host, t.rail).name;
  }
  std::string there(const PairTry& t) const {
    return peer->name + " " + rail_of(*peer, t.peer_rail).name;
  }
  // What else would have to be looked at.  The software HCA's cable ends at its host.
  std::string remedy(const char* otherwise) const {
    const auto soft = [](const HostCard& c) {
      const auto at = c.environment.find("TWINPATH_FABRIC");
      return at != c.environment.end() && at->second == "soft";
    };
    return soft(*host) || soft(*peer)
               ? "TWINPATH_FABRIC=soft joins processes of one host only: unset it on all hosts"
               : otherwise;
  }
  bool aware() const { return host->subnet_aware && peer->subnet_aware; }
  // Whether the two rails are on one network: nullopt where one is on none that is known.
  std::optional<bool> near(const PairTry& t) const {
    const auto &a = rail_of(*host, t.rail).network, &b = rail_of(*peer, t.peer_rail).network;
    if (!a || !b) return std::nullopt;
    return on_one_network(*a, *b, aware() ? host->subnet_prefix : a->prefix);
  }
};

Tries failed(const Tries& tries) {
  Tries out;
  std::copy_if(tries.begin(), tries.end(), std::back_inserter(out),
               [](const PairTry* t) { return !t->why.empty(); });
  return out;
}

// True when these failures are those of hosts whose networks nothing joins, and has been said.
bool apart(const Between& b, const Tries& bad, Checks& out) {
  const auto is_near = [&](const PairTry* t) { return b.near(*t) == true; };
  const auto is_far = [&](const PairTry* t) { return b.near(*t) == false; };
  if (bad.empty() || !std::all_of(bad.begin(), bad.end(), is_far)) return false;
  if (std::none_of(b.tries.begin(), b.tries.end(), is_near)) return false;
  const std::string object = b.host->name + " " + b.peer->name;
  const std::string fact =
      "only rails on one network reach each other: " + std::to_string(b.tries.size() - bad.size()) +
      " of " + std::to_string(b.tries.size()) + " pairs";
  if (b.aware()) {
    out.add("networks", object, Level::ok, fact + "; connections take those");
    return true;
  }
  const auto straight = [](const PairTry* t) { return t->rail == t->peer_rail; };
  const bool own_rail = std::none_of(bad.begin(), bad.end(), straight);
  out.add("networks", object, own_rail ? Level::warn : Level::fail, fact,
          std::string("NCCL_IB_SUBNET_AWARE_ROUTING=1 on all hosts, or routes between them") +
              (own_rail ? "; NCCL_CROSS_NIC=0 keeps NCCL's rings on one rail" : ""));
  return true;
}

// True when all that failed is one rail with every rail of the other host, and has been said.
bool one_rail(const Between& b, const Tries& bad, Checks& out) {
  const auto say = [&](const std::string& rail, const std::string& other) {
    out.add("reach", rail, Level::fail, "reaches no rail of " + other + ": " + bad.front()->why,
            b.remedy("see its cable, switch port, VLAN and address"));
    return true;
  };
  const auto all_of = [&](int PairTry::*rail) {
    const int first = bad.front()->*rail;
    const auto same = [&](const PairTry* t) { return t->*rail == first; };
    return std::all_of(bad.begin(), bad.end(), same) &&
           std::count_if(b.tries.begin(), b.tries.end(), same) ==
               static_cast<std::ptrdiff_t>(bad.size());
  };
  if (bad.size() == b.tries.size()) return false;
  if (all_of(&PairTry::rail)) return say(b.here(*bad.front()), b.peer->name);
  if (all_of(&PairTry::peer_rail)) return say(b.there(*bad.front()), b.host->name);
  return false;
}

void judge(const Between& b, Checks& out) {
  Tries bad = failed(b.tries);
  if (b.tries.empty()) {
    out.add("reach", b.host->name + " " + b.peer->name, Level::fail, "no pair of rails to try",
            "see what each host found");
    return;
  }
  if (bad.size() < b.tries.size()) {
    double least = 0, most = 0;
    for (const PairTry* t : b.tries) {
      if (!t->why.empty()) continue;
      least = least == 0 ? t->us : std::min(least, t->us);
      most = std::max(most, t->us);
    }
    out.add("reach", b.host->name + " " + b.peer->name, Level::ok,
            std::to_string(b.tries.size() - bad.size()) + " of " + std::to_string(b.tries.size()) +
                " pairs of rails; 1 MiB in " + number(least, 0) + " to " + number(most, 0) + " us");
  }
  if (apart(b, bad, out)) return;
  // Where connections are chosen by network, the other pairs are never taken.
  const auto near = [&](const PairTry* t) { return b.near(*t) == true; };
  if (b.aware() && std::any_of(b.tries.begin(), b.tries.end(), near))
    std::erase_if(bad, [&](const PairTry* t) { return b.near(*t) == false; });
  if (bad.size() > 1 && one_rail(b, bad, out)) return;
  for (const PairTry* t : bad)
    out.add("reach", b.here(*t) + " -> " + b.there(*t), Level::fail, t->why,
            b.remedy("see cables, switches, VLANs and routes between these two"));
}

}  // namespace

void judge_tries(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries,
                 Checks& out) {
  out.begin("rails between hosts");
  for (std::size_t h = 0; h < cards.size(); ++h)
    for (std::size_t p = h + 1; p < cards.size(); ++p) {
      Between b{&cards[h], &cards[p], {}};
      for (const PairTry& t : tries)
        if (t.host == static_cast<int>(h) && t.peer == static_cast<int>(p)) b.tries.push_back(&t);
      judge(b, out);
    }
}

Json tries_json(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries) {
  Json out = Json::array();
  for (const PairTry& t : tries) {
    const HostCard &h = cards.at(static_cast<std::size_t>(t.host)),
                   &p = cards.at(static_cast<std::size_t>(t.peer));
    const bool ok = t.why.empty();
    out.push_back({{"host", h.name},
                   {"rail", rail_of(h, t.rail).name},
                   {"peer", p.name},
                   {"peer_rail", rail_of(p, t.peer_rail).name},
                   {"connect_ms", ok ? Json(t.connect_ms) : Json(nullptr)},
                   {"us", ok ? Json(t.us) : Json(nullptr)},
                   {"failed", ok ? Json(nullptr) : Json(t.why)}});
  }
  return out;
}

}  // namespace twinpath::tools::topo
