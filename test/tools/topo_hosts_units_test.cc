// What `twinpath-topo check` says of several hosts, without hosts: cards and
// tries in, findings out.
#include <functional>
#include <set>

#include "test/support/catch.h"
#include "tools/common/failure.h"
#include "tools/topo/compare.h"
#include "tools/topo/hosts.h"
#include "tools/topo/rail_end.h"
#include "tools/topo/rail_tries.h"

namespace twinpath::tools::topo {
namespace {

RailFacts rail(const std::string& name, const std::string& address) {
  RailFacts r;
  r.name = name;
  r.roce = true;
  r.mbps = 400000;
  r.mtu = 4096;
  r.gid = address.substr(0, address.find('/'));
  r.network = parse_ip_range(address);
  return r;
}

HostCard host(const std::string& name, const std::vector<std::string>& addresses) {
  HostCard c;
  c.name = name;
  c.kernel = "6.1.0";
  c.driver = "580.95";
  c.plugin = "0.2.0 (0123456789ab)";
  c.nccl = "2.28.9";
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const std::string hca = "mlx5_" + std::to_string(i);
    c.hcas.push_back({hca, "MT_0000000838", "28.40.1000"});
    c.rails.push_back(rail(hca, addresses[i]));
  }
  c.environment["NCCL_IB_TIMEOUT"] = "20";
  return c;
}

using Cards = std::vector<HostCard>;

// Every pair of rails of every two hosts; `works` decides.
std::vector<PairTry> tried(const Cards& cards, const std::function<bool(const PairTry&)>& works) {
  std::vector<PairTry> out;
  for (std::size_t h = 0; h < cards.size(); ++h)
    for (std::size_t p = h + 1; p < cards.size(); ++p)
      for (std::size_t a = 0; a < cards[h].rails.size(); ++a)
        for (std::size_t b = 0; b < cards[p].rails.size(); ++b) {
          PairTry t;
          t.host = static_cast<int>(h);
          t.peer = static_cast<int>(p);
          t.rail = static_cast<int>(a);
          t.peer_rail = static_cast<int>(b);
          t.us = 100;
          if (!works(t)) t.why = "no connection within 10 s";
          out.push_back(t);
        }
  return out;
}

Cards two() {
  return {host("a", {"10.0.0.1/16", "10.0.1.1/16"}), host("b", {"10.0.0.2/16", "10.0.1.2/16"})};
}
// What rails look like to the software HCA, whose hosts are none to each other.
Cards two_soft() {
  Cards out = two();
  for (HostCard& c : out) c.environment["TWINPATH_FABRIC"] = "soft";
  return out;
}
// One network a rail.
Cards two_apart() {
  return {host("a", {"10.0.0.1/24", "10.0.1.1/24"}), host("b", {"10.0.0.2/24", "10.0.1.2/24"})};
}
// Three hosts in a ring of direct cables: the second rail of each to the first
// of the next.
Cards ring() {
  return {host("a", {"10.0.3.1/24", "10.0.1.1/24"}), host("b", {"10.0.1.2/24", "10.0.2.1/24"}),
          host("c", {"10.0.2.2/24", "10.0.3.2/24"})};
}
bool cabled(const Cards& cards, const PairTry& t) {
  const auto& a = cards[static_cast<std::size_t>(t.host)].rails[static_cast<std::size_t>(t.rail)];
  const auto& b =
      cards[static_cast<std::size_t>(t.peer)].rails[static_cast<std::size_t>(t.peer_rail)];
  return on_one_network(*a.network, *b.network, 24);
}

std::vector<const CheckItem*> of(const Checks& checks, std::string_view id, Level level) {
  std::vector<const CheckItem*> out;
  for (const CheckItem& i : checks.items())
    if (i.id == id && i.level == level) out.push_back(&i);
  return out;
}
bool mentions(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}
constexpr auto kAll = [](const PairTry&) { return true; };

}  // namespace

TEST_CASE("hosts that are alike and reach each other give no finding") {
  const Checks checks = check_hosts(two(), tried(two(), kAll));
  CHECK(checks.exit_code(true) == 0);
  REQUIRE(of(checks, "reach", Level::ok).size() == 1);
  CHECK(mentions(of(checks, "reach", Level::ok)[0]->fact, "4 of 4 pairs"));
}

TEST_CASE("what differs between hosts is found, with the value of each") {
  struct Case {
    const char* what;
    std::function<void(HostCard&)> change;
    const char *id, *object, *fact;
  };
  const Case cases[] = {
      {"plugin", [](HostCard& c) { c.plugin = "0.1.0 (ba9876543210)"; }, "plugin", "",
       "a: 0.2.0 (0123456789ab)"},
      {"NCCL", [](HostCard& c) { c.nccl = "2.27.3"; }, "nccl", "", "b: 2.27.3"},
      {"NCCL of one is not told", [](HostCard& c) { c.nccl.clear(); }, "nccl", "", "b: not told"},
      {"driver", [](HostCard& c) { c.driver = "550.54"; }, "driver", "", "b: 550.54"},
      {"kernel", [](HostCard& c) { c.kernel = "5.15.0"; }, "kernel", "", "b: 5.15.0"},
      {"firmware of one adapter", [](HostCard& c) { c.hcas[1].firmware = "28.39.1002"; },
       "firmware", "MT_0000000838", "b: 28.39.1002"},
      {"rails", [](HostCard& c) { c.rails.pop_back(); }, "rails", "", "b: 1"},
      {"speed", [](HostCard& c) { c.rails[1].mbps = 200000; }, "speed", "rail 1", "b: 200"},
      {"speed of a fraction", [](HostCard& c) { c.rails[1].mbps = 2500; }, "speed", "rail 1",
       "b: 2.5"},
      {"MTU", [](HostCard& c) { c.rails[0].mtu = 1024; }, "packets", "rail 0", "b: 1024"},
      {"link layer", [](HostCard& c) { c.rails[0].roce = false; }, "link-layer", "rail 0",
       "b: InfiniBand"},
      {"a setting", [](HostCard& c) { c.environment["NCCL_IB_TIMEOUT"] = "22"; }, "settings",
       "NCCL_IB_TIMEOUT", "b: '22'"},
      {"a setting of one alone", [](HostCard& c) { c.environment["NCCL_IB_TC"] = "106"; },
       "settings", "NCCL_IB_TC", "a: not set"}};
  for (const Case& c : cases) {
    INFO(c.what);
    Cards cards = two();
    c.change(cards[1]);
    Checks checks;
    compare_cards(cards, checks);
    const auto found = of(checks, c.id, Level::warn);
    REQUIRE(found.size() == 1);
    CHECK(mentions(found[0]->fact, c.fact));
    CHECK_FALSE(found[0]->remedy.empty());
    CHECK((*c.object == '\0' || found[0]->objects == std::vector<std::string>{c.object}));
    CHECK(checks.count(Level::warn) == 1);
  }
  Cards cards = two();
  cards[1].environment["NCCL_SOCKET_IFNAME"] = "eth1";  // a host's own name
  Checks checks;
  compare_cards(cards, checks);
  CHECK(checks.exit_code(true) == 0);
}

TEST_CASE("what a host finds at itself is told under its name") {
  Cards cards = two();
  cards[1].found = {{"node", "memlock", {}, Level::fail, "64 KiB may be locked", "ulimit -l"},
                    {"node", "iommu", {}, Level::ok, "off", ""}};
  const Checks checks = check_hosts(cards, tried(cards, kAll));
  const auto found = of(checks, "memlock", Level::fail);
  REQUIRE(found.size() == 1);
  CHECK(found[0]->group == "host b");
  CHECK(of(checks, "iommu", Level::ok).empty());  // of others only what is wrong
  CHECK(checks.exit_code(false) == 2);
}

TEST_CASE("pairs of rails that do not work are named, and their kind is known") {
  struct Case {
    const char* what;
    Cards cards;
    bool aware;
    std::function<bool(const Cards&, const PairTry&)> works;
    // Findings that are not OK: id, level, objects of the first, word in fact
    // or remedy.
    std::size_t found;
    const char* id;
    Level level;
    const char *object, *word;
  };
  const auto diagonal = [](const Cards&, const PairTry& t) { return t.rail == t.peer_rail; };
  const Case cases[] = {
      {"one pair", two(), false,
       [](const Cards&, const PairTry& t) { return t.rail != 0 || t.peer_rail != 1; }, 1, "reach",
       Level::fail, "a mlx5_0 (10.0.0.1) -> b mlx5_1 (10.0.1.2)", "no connection"},
      {"one rail here", two(), false, [](const Cards&, const PairTry& t) { return t.rail != 1; }, 1,
       "reach", Level::fail, "a mlx5_1 (10.0.1.1)", "no rail of b"},
      {"one rail there", two(), false,
       [](const Cards&, const PairTry& t) { return t.peer_rail != 0; }, 1, "reach", Level::fail,
       "b mlx5_0 (10.0.0.2)", "no rail of a"},
      {"all", two(), false, [](const Cards&, const PairTry&) { return false; }, 1, "reach",
       Level::fail, "a b", "a mlx5_0 (10.0.0.1) -> b mlx5_0 (10.0.0.2): no connection"},
      {"software HCAs of two hosts", two_soft(), false,
       [](const Cards&, const PairTry&) { return false; }, 1, "reach", Level::fail, "a b",
       "joins processes of one host only"},
      {"across, on one network", two(), false, diagonal, 2, "reach", Level::fail,
       "a mlx5_0 (10.0.0.1) -> b mlx5_1 (10.0.1.2)", "no connection"},
      {"across, on a network each", two_apart(), false, diagonal, 1, "networks", Level::warn, "a b",
       "NCCL_CROSS_NIC=0"},
      {"the same, chosen by network", two_apart(), true, diagonal, 0, "", Level::ok, "", ""},
      {"chosen by network, and one of it fails", two_apart(), true,
       [](const Cards&, const PairTry& t) { return t.rail == 0 && t.peer_rail == 0; }, 1, "reach",
       Level::fail, "a mlx5_1 (10.0.1.1) -> b mlx5_1 (10.0.1.2)", "no connection"},
      {"a ring of direct cables", ring(), false, cabled, 3, "networks", Level::fail, "a b",
       "NCCL_IB_SUBNET_AWARE_ROUTING=1"},
      {"the same, chosen by network", ring(), true, cabled, 0, "", Level::ok, "", ""},
      {"no rails",
       {host("a", {}), host("b", {"10.0.0.2/24"})},
       false,
       [](const Cards&, const PairTry&) { return true; },
       1,
       "reach",
       Level::fail,
       "a b",
       "no pair"}};
  for (const Case& c : cases) {
    INFO(c.what);
    Cards cards = c.cards;
    for (HostCard& card : cards) card.subnet_aware = c.aware;
    Checks checks;
    judge_tries(cards, tried(cards, [&](const PairTry& t) { return c.works(cards, t); }), checks);
    std::vector<const CheckItem*> found;
    std::size_t objects = 0;
    for (const CheckItem& i : checks.items())
      if (i.level != Level::ok) {
        found.push_back(&i);
        objects += i.objects.size();
      }
    REQUIRE(objects == c.found);
    if (found.empty()) continue;
    CHECK(found[0]->id == c.id);
    CHECK(found[0]->level == c.level);
    CHECK(found[0]->objects.front() == c.object);
    CHECK(mentions(found[0]->fact + found[0]->remedy, c.word));
  }
}

// A ring whose hosts choose by network, as they do by themselves.
Cards chosen_ring() {
  Cards out = ring();
  for (HostCard& c : out) {
    c.subnet_aware = true;
    c.subnet_prefix = 24;
  }
  return out;
}
// Loses a rail, and with it the choice: there is one left.
void lose(HostCard& c, std::size_t rail, const char* found) {
  c.found = {{"", "port-state", {c.rails[rail].name}, Level::fail, found, "see cable"}};
  c.rails.erase(c.rails.begin() + static_cast<std::ptrdiff_t>(rail));
  c.subnet_aware = false;
}

TEST_CASE("each fault of a ring of cables is one finding between its two hosts") {
  struct Case {
    const char* what;
    std::function<void(Cards&)> change;
    std::function<bool(const Cards&, const PairTry&)> works;
    std::vector<std::vector<std::string>> found;  // objects, and words of fact and remedy
  };
  const auto why = [](const Cards&, const PairTry&) { return false; };
  const Case cases[] = {
      {"none", [](Cards&) {}, cabled, {}},
      {"a cable is out: both ports are down",
       [](Cards& c) { lose(c[0], 1, "DOWN"), lose(c[1], 0, "DOWN"); },
       cabled,
       {{"a b", "10.0.3.1/24 (mlx5_0)", "10.0.2.1/24 (mlx5_1)",
         "first the ports that are not up: a mlx5_1; b mlx5_0"}}},
      {"one port is down, and its peer sees nothing of it",
       [](Cards& c) { lose(c[0], 1, "DOWN"); },
       cabled,
       {{"a b", "no rails on one network", "first the ports that are not up: a mlx5_1"}}},
      {"a cable loses all",
       [](Cards&) {},
       [](const Cards& c, const PairTry& t) { return cabled(c, t) && t.peer != 1; },
       {{"a mlx5_1 (10.0.1.1) -> b mlx5_0 (10.0.1.2)", "no connection within 10 s"}}},
      {"a wrong address that is reached all the same",
       [](Cards& c) { c[1].rails[0] = rail("mlx5_0", "10.0.9.2/24"); },
       [](const Cards& c, const PairTry& t) {
         return cabled(c, t) || (t.peer == 1 && t.rail == 1 && t.peer_rail == 0);
       },
       {{"a b", "b has 10.0.9.2/24 (mlx5_0)",
         "a mlx5_1 (10.0.1.1) and b mlx5_0 (10.0.9.2) reach each other all the same",
         "one network for both ends of a cable"}}},
      {"an interface without an address, which ends the choice by network",
       [](Cards& c) {
         c[1].rails[0].network.reset();
         c[1].rails[0].gid = "fe80::75";
         c[1].subnet_aware = false;
       },
       cabled,
       {{"a b", "no pair of rails connects",
         "give an address to the interface of b mlx5_0 (fe80::75)"},
        {"b c", "only rails on one network", "give an address to the interface of b mlx5_0"}}},
      {"no host has a rail",
       [](Cards& c) { c[0].rails.clear(), c[2].rails.clear(); },
       why,
       {{"a b", "no pair of rails"}, {"a c", "no pair of rails"}, {"b c", "no pair of rails"}}},
  };
  const auto network = [](const Cards& cards, const PairTry& t) {
    const auto &a = cards[static_cast<std::size_t>(t.host)].rails[static_cast<std::size_t>(t.rail)],
               &b = cards[static_cast<std::size_t>(t.peer)]
                        .rails[static_cast<std::size_t>(t.peer_rail)];
    return a.network && b.network;
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Cards cards = chosen_ring();
    c.change(cards);
    auto tries =
        tried(cards, [&](const PairTry& t) { return network(cards, t) && c.works(cards, t); });
    std::erase_if(tries, [&](const PairTry& t) {
      return use_of(cards[static_cast<std::size_t>(t.host)], t.rail,
                    cards[static_cast<std::size_t>(t.peer)], t.peer_rail) == PairUse::never;
    });
    Checks checks;
    judge_tries(cards, tries, checks);
    std::map<std::string, std::string> found;  // text by object
    for (const CheckItem& i : checks.items())
      if (i.level != Level::ok)
        for (const std::string& object : i.objects) found[object] += i.fact + " -> " + i.remedy;
    CHECK(found.size() == c.found.size());
    for (const auto& words : c.found) {
      INFO(words.front() << ": " << found[words.front()]);
      for (std::size_t i = 1; i < words.size(); ++i)
        CHECK(mentions(found[words.front()], words[i]));
    }
  }
}

TEST_CASE("pairs that no connection takes are not tried") {
  struct Case {
    const char* what;
    Cards cards;  // the first two count
    int rail, peer_rail;
    PairUse use;
  };
  Cards single = chosen_ring(), plain = ring(), far = chosen_ring(), bare = chosen_ring();
  lose(single[1], 1, "DOWN");
  far[1].rails[0] = rail("mlx5_0", "10.0.9.2/24");
  bare[1].rails[0].network.reset();
  const Case cases[] = {
      {"the cable", chosen_ring(), 1, 0, PairUse::near},
      {"beside it", chosen_ring(), 0, 0, PairUse::never},
      {"and there", chosen_ring(), 1, 1, PairUse::never},
      {"the peer has one rail: nothing to choose", single, 0, 0, PairUse::never},
      {"the cable of those", single, 1, 0, PairUse::near},
      {"not chosen by network: a router may join them", plain, 0, 0, PairUse::maybe},
      {"no cable has one network at both ends", far, 1, 0, PairUse::maybe},
      {"a network that is not known", bare, 1, 0, PairUse::near},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(use_of(c.cards[0], c.rail, c.cards[1], c.peer_rail) == c.use);
  }
}

TEST_CASE("a failure is told by the cause in the plugin's warning") {
  const std::string cause = "rxe0 of a has the address ::ffff:10.0.0.1, too; choose another";
  const std::pair<std::string, std::string> rows[] = {
      {"NET/Twinpath: no connection from rxe0 GID index 1 ::ffff:10.0.0.1 (port 1) to b pid 9 "
       "(10.76.0.2:47235), rxe1: " +
           cause,
       cause},
      {"NET/Twinpath: b pid 9 (10.76.0.2:51065), rxe0 refused the connection from rxe0 GID index 1 "
       "::ffff:10.0.0.1 (port 1) to rxe0 GID index 1 ::ffff:10.0.0.2: " +
           cause,
       cause},
      {"NET/Twinpath: a port cannot be used: no address", "a port cannot be used: no address"},
      {"NET/Twinpath: no connection from here", "no connection from here"},
      {"another plugin's words", "another plugin's words"},
      {"", ""}};
  for (const auto& [warning, wanted] : rows) CHECK(cause_in(warning) == wanted);
}

TEST_CASE("a card is the same behind the wire, and what is none is refused") {
  Cards cards = two();
  cards[0].rails[1].network.reset();
  cards[0].rails[1].gid = "fe80::1";
  cards[0].subnet_aware = true;
  cards[0].subnet_prefix = 30;
  cards[0].found = {{"node", "memlock", {"x", "y"}, Level::warn, "few", "more"}};
  const std::string text = card_json(cards[0]).dump();
  CHECK(card_json(parse_card(text)).dump() == text);
  REQUIRE(parse_card(text).rails[0].network);
  CHECK(parse_card(text).rails[0].network->prefix == 16);
  CHECK_FALSE(parse_card(text).rails[1].network);
  for (const char* bad : {"", "{}", "[]", "{\"card\": \"other/1\"}"})
    CHECK_THROWS_AS(parse_card(bad), Failure);
}

TEST_CASE("hosts of one name are told apart") {
  Cards cards{host("a", {}), host("b", {}), host("a", {}), host("a", {})};
  tell_apart(cards);
  CHECK(cards[0].name == "a");
  CHECK(cards[2].name == "a#1");
  CHECK(cards[3].name == "a#2");
}

TEST_CASE("each meets each other once, and nobody two in one round") {
  for (int n = 2; n <= 9; ++n) {
    std::set<std::pair<int, int>> met;
    for (int r = 0; r < n - 1 + n % 2; ++r)
      for (int who = 0; who < n; ++who) {
        const int other = partner(who, r, n);
        if (other < 0) continue;
        REQUIRE(other != who);
        REQUIRE(partner(other, r, n) == who);
        if (who < other) CHECK(met.insert({who, other}).second);
      }
    CHECK(met.size() == static_cast<std::size_t>(n * (n - 1) / 2));
  }
}

TEST_CASE("hosts are split, and lines quoted for a shell") {
  CHECK(split_hosts("a,me@b") == std::vector<std::string>{"a", "me@b"});
  for (const char* bad : {"", "a", "a,,b", ",a", "a,-oProxyCommand=x"})
    CHECK_THROWS_AS(split_hosts(bad), BadUsage);
  CHECK(quoted("a b") == "'a b'");
  CHECK(quoted("it's") == "'it'\\''s'");
}

}  // namespace twinpath::tools::topo
