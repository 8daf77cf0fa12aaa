// What the tried pairs of rails say of the network between the hosts.
#include <algorithm>
#include <utility>

#include "tools/topo/compare.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

using Tries = std::vector<const PairTry*>;

const RailFacts& rail_of(const HostCard& c, int rail) {
  return c.rails.at(static_cast<std::size_t>(rail));
}

// A host with one rail has nothing to choose.
bool chooses(const HostCard& c) { return c.subnet_aware || c.rails.size() < 2; }

// Whether two rails are on one network: nullopt where one is on none that is known.
std::optional<bool> on_one(const HostCard& host, int rail, const HostCard& peer, int peer_rail) {
  const auto &a = rail_of(host, rail).network, &b = rail_of(peer, peer_rail).network;
  if (!a || !b) return std::nullopt;
  return on_one_network(*a, *b,
                        host.subnet_aware   ? host.subnet_prefix
                        : peer.subnet_aware ? peer.subnet_prefix
                                            : a->prefix);
}

int count_near(const HostCard& host, const HostCard& peer) {
  int near = 0;
  for (int r = 0; r < static_cast<int>(host.rails.size()); ++r)
    for (int p = 0; p < static_cast<int>(peer.rails.size()); ++p)
      near += on_one(host, r, peer, p) == true ? 1 : 0;
  return near;
}

std::string network_text(const RailFacts& r) {
  return r.gid + (r.network ? "/" + std::to_string(r.network->prefix) : "");
}

// All tries between two hosts.
struct Between {
  const HostCard *host, *peer;
  Tries tries;

  static std::string end(const HostCard& c, int rail) {
    const RailFacts& r = rail_of(c, rail);
    return c.name + " " + r.name + (r.gid.empty() ? "" : " (" + r.gid + ")");
  }
  std::string here(const PairTry& t) const { return end(*host, t.rail); }
  std::string there(const PairTry& t) const { return end(*peer, t.peer_rail); }
  std::string both() const { return host->name + " " + peer->name; }
  std::size_t pairs() const { return host->rails.size() * peer->rails.size(); }
  bool aware() const { return chooses(*host) && chooses(*peer); }
  std::optional<bool> near(const PairTry& t) const {
    return on_one(*host, t.rail, *peer, t.peer_rail);
  }

  // Something of both, with each host's name before it.
  template <class Text>
  std::string of_both(Text text) const {
    const std::string a = text(*host), b = text(*peer);
    return a + (a.empty() || b.empty() ? "" : "; ") + b;
  }
  // Ports that are not up, to be seen to before anything between the hosts; empty: none.
  std::string see_ports() const {
    const std::string down = of_both([](const HostCard& c) {
      std::string out;
      for (const CheckItem& i : c.found)
        if (i.id == "port-state" && (i.level == Level::warn || i.level == Level::fail))
          out += (out.empty() ? c.name + " " : ", ") + few(i.objects);
      return out;
    });
    return down.empty() ? "" : "first the ports that are not up: " + down;
  }
  // Rails whose interface has no address while others have one; empty: none.
  std::string see_addresses() const {
    bool any = false;
    const std::string bare = of_both([&any](const HostCard& c) {
      std::string out;
      for (const RailFacts& r : c.rails) {
        any = any || r.network;
        if (r.roce && !r.network)
          out += (out.empty() ? c.name + " " : ", ") + r.name +
                 (r.gid.empty() ? "" : " (" + r.gid + ")");
      }
      return out;
    });
    return bare.empty() || !any ? "" : "give an address to the interface of " + bare;
  }
  std::string see_either() const {
    const std::string ports = see_ports();
    return ports.empty() ? see_addresses() : ports;
  }
  // Where the software HCA plays: its cable ends at its host.
  bool soft() const {
    const auto is_soft = [](const HostCard& c) {
      const auto at = c.environment.find("TWINPATH_FABRIC");
      return at != c.environment.end() && at->second == "soft";
    };
    return is_soft(*host) || is_soft(*peer);
  }
};

Tries failed(const Tries& tries) {
  Tries out;
  std::copy_if(tries.begin(), tries.end(), std::back_inserter(out),
               [](const PairTry* t) { return !t->why.empty(); });
  return out;
}

// A failure as the plugin tells it: behind the first semicolon is what to do.  `first` goes before
// that, `otherwise` behind it.
void add_failure(const Between& b, const std::string& object, const std::string& fact,
                 const std::string& first, const char* otherwise, Checks& out) {
  const std::size_t at = fact.find("; ");
  out.add("reach", object, Level::fail, fact.substr(0, at),
          b.soft() ? "TWINPATH_FABRIC=soft joins processes of one host only: unset it on all hosts"
          : !first.empty()          ? first
          : at != std::string::npos ? fact.substr(at + 2)
                                    : otherwise);
}

// True when these failures are those of hosts whose networks nothing joins, and has been said.
bool apart(const Between& b, const Tries& bad, Checks& out) {
  const auto is_near = [&](const PairTry* t) { return b.near(*t) == true; };
  if (bad.empty() || std::any_of(bad.begin(), bad.end(), is_near)) return false;
  if (std::none_of(b.tries.begin(), b.tries.end(), is_near)) return false;
  const std::string fact =
      "only rails on one network reach each other: " + std::to_string(b.tries.size() - bad.size()) +
      " of " + std::to_string(b.tries.size()) + " pairs";
  const auto straight = [](const PairTry* t) { return t->rail == t->peer_rail; };
  const bool own_rail = std::none_of(bad.begin(), bad.end(), straight);
  const std::string first = b.see_addresses();
  out.add("networks", b.both(), own_rail ? Level::warn : Level::fail, fact,
          !first.empty()
              ? first
              : std::string("NCCL_IB_SUBNET_AWARE_ROUTING=1 on all hosts, or routes between them") +
                    (own_rail ? "; NCCL_CROSS_NIC=0 keeps NCCL's rings on one rail" : ""));
  return true;
}

// True when the hosts have no network in common though connections go by network, and has been
// said: even a pair that connects is then taken by chance only.
bool no_common_network(const Between& b, const Tries& bad, Checks& out) {
  const auto is_far = [&](const PairTry* t) { return b.near(*t) == false; };
  if (bad.empty() || !b.aware() || !std::all_of(b.tries.begin(), b.tries.end(), is_far))
    return false;
  const std::string have = b.of_both([](const HostCard& c) {
    std::string text;
    for (const RailFacts& r : c.rails)
      text += (text.empty() ? c.name + " has " : ", ") + network_text(r) + " (" + r.name + ")";
    return text;
  });
  std::string fact = "no rails on one network: " + have;
  for (const PairTry* t : b.tries)
    if (t->why.empty())
      fact += "; " + b.here(*t) + " and " + b.there(*t) + " reach each other all the same";
  const std::string first = b.see_either();
  out.add("reach", b.both(), Level::fail, fact,
          first.empty() ? "one network for both ends of a cable; or routes between the networks"
                        : first);
  return true;
}

// True when all that failed is one rail with every rail of the other host, or every pair, and has
// been said.
bool one_cause(const Between& b, const Tries& bad, Checks& out) {
  const auto say = [&](const std::string& rail, const std::string& other) {
    add_failure(b, rail, "reaches no rail of " + other + ": " + bad.front()->why, "",
                "see its cable, switch port, VLAN and address", out);
    return true;
  };
  const auto all_of = [&](int PairTry::*rail) {
    const int first = bad.front()->*rail;
    const auto same = [&](const PairTry* t) { return t->*rail == first; };
    return std::all_of(bad.begin(), bad.end(), same) &&
           std::count_if(b.tries.begin(), b.tries.end(), same) ==
               static_cast<std::ptrdiff_t>(bad.size());
  };
  if (bad.size() == b.tries.size()) {
    const std::string first = b.here(*bad.front()) + " -> " + b.there(*bad.front());
    add_failure(b, b.both(), "no pair of rails connects: " + first + ": " + bad.front()->why,
                b.see_addresses(), "see cables, switches, VLANs and routes between these two", out);
    return true;
  }
  if (all_of(&PairTry::rail)) return say(b.here(*bad.front()), b.peer->name);
  if (all_of(&PairTry::peer_rail)) return say(b.there(*bad.front()), b.host->name);
  return false;
}

void say_what_works(const Between& b, const Tries& bad, Checks& out) {
  if (bad.size() == b.tries.size()) return;
  double least = 0, most = 0;
  for (const PairTry* t : b.tries) {
    if (!t->why.empty()) continue;
    least = least == 0 ? t->us : std::min(least, t->us);
    most = std::max(most, t->us);
  }
  const std::string time =
      number(least, 0) + (most > least ? " to " + number(most, 0) : std::string());
  out.add("reach", b.both(), Level::ok,
          std::to_string(b.tries.size() - bad.size()) + " of " + std::to_string(b.tries.size()) +
              " pairs of rails; 1 MiB in " + time + " us");
}

void judge(Between b, Checks& out) {
  if (b.tries.empty()) {
    const std::string first = b.see_either();
    out.add("reach", b.both(), Level::fail, "no pair of rails to try",
            first.empty() ? "see what each host found" : first);
    return;
  }
  // Where connections are chosen by network, the other pairs are never taken.
  std::erase_if(b.tries, [&](const PairTry* t) {
    return use_of(*b.host, t->rail, *b.peer, t->peer_rail) == PairUse::never;
  });
  if (b.tries.size() < b.pairs())
    out.add("networks", b.both(), Level::ok,
            "connections take rails on one network: " + std::to_string(b.tries.size()) + " of " +
                std::to_string(b.pairs()) + " pairs");
  const Tries bad = failed(b.tries);
  say_what_works(b, bad, out);
  if (no_common_network(b, bad, out) || apart(b, bad, out)) return;
  if (bad.size() > 1 && one_cause(b, bad, out)) return;
  for (const PairTry* t : bad)
    add_failure(b, b.here(*t) + " -> " + b.there(*t), t->why, "",
                "see cables, switches, VLANs and routes between these two", out);
}

}  // namespace

PairUse use_of(const HostCard& host, int rail, const HostCard& peer, int peer_rail) {
  if (on_one(host, rail, peer, peer_rail) != false) return PairUse::near;
  return chooses(host) && chooses(peer) && count_near(host, peer) > 0 ? PairUse::never
                                                                      : PairUse::maybe;
}

void judge_tries(const std::vector<HostCard>& cards, const std::vector<PairTry>& tries,
                 Checks& out) {
  out.begin("rails between hosts");
  for (std::size_t h = 0; h < cards.size(); ++h)
    for (std::size_t p = h + 1; p < cards.size(); ++p) {
      Between b{&cards[h], &cards[p], {}};
      for (const PairTry& t : tries)
        if (t.host == static_cast<int>(h) && t.peer == static_cast<int>(p)) b.tries.push_back(&t);
      judge(std::move(b), out);
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
