// Connections of a team over a merged device take its ports in turn.
#include <thread>

#include "gda/team/rail_turns.h"
#include "plugin/fabric/soft/extended.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::uint64_t kTeam = 77;

Member join_over(Rank& r, int device) { return join(r, settings28(), device, {.comm_id = kTeam}); }

// A put with a signal to each rank, itself too, and the same from each.
std::string talk(Rank& r, Member& member, std::uint64_t round) {
  constexpr std::size_t kBytes = 4096;
  const auto ranks = static_cast<std::size_t>(r.ranks);
  WindowMemory from(*member.comm, kBytes), to(*member.comm, kBytes * ranks);
  EXPECT_GIN(from && to);
  from.fill(static_cast<unsigned>(r.rank), 0, kBytes);
  r.meeting->barrier();
  auto kernel = member.kernel();
  PutExtras extras;
  extras.signal = 0;
  for (int p = 0; p < r.ranks; ++p)
    TRY_GIN(kernel.put(p, to.handle(), kBytes * static_cast<std::size_t>(r.rank), from.handle(), 0,
                       kBytes, extras));
  TRY_GIN(kernel.wait_signal(0, round * ranks));
  WindowMemory expected(*member.comm, kBytes);
  for (std::size_t p = 0; p < ranks; ++p) {
    expected.fill(static_cast<unsigned>(p), 0, kBytes);
    EXPECT_GIN(std::equal(expected.data(), expected.data() + kBytes, to.data() + kBytes * p));
  }
  r.meeting->barrier();
  return {};
}

std::string in_turn(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  const int device = static_cast<int>(r.devices->count()) - 1;
  const Port& second = *r.devices->rails(1).front().port;
  std::vector<Member> members;
  for (std::uint64_t n = 0; n < 4; ++n) {
    members.push_back(join_over(r, device));
    EXPECT_GIN(members.back().context, static_cast<std::int64_t>(n));
    if (auto wrong = talk(r, members.back(), 1); !wrong.empty()) return wrong;
  }
  // The second port fails: what goes over it ends or moves to the first (move_test.cc), the rest
  // does not notice.
  r.meeting->barrier();
  if (r.rank == 0) EXPECT_GIN(soft::set_port_state(second.context, second.number, false) == 0);
  const std::int64_t down = now_ns();
  const Config& config = r.devices->config();
  const bool by_proxy = config.mode == ModeChoice::proxy;
  const bool moves = config.failover && config.gin_atomics != (by_proxy ? AtomicsChoice::always
                                                                        : AtomicsChoice::never);
  while (!moves && !(members[1].context->failed() && members[3].context->failed()) &&
         now_ns() < down + 10 * kSecond)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (std::size_t n = 0; n < members.size(); ++n) {
    const bool ends = !moves && n % 2 != 0;
    EXPECT_GIN(members[n].context->failed() == ends, static_cast<std::int64_t>(n));
    if (ends) continue;
    if (auto wrong = talk(r, members[n], 2); !wrong.empty()) return wrong;
  }
  // And who comes while it is down goes over the first, whichever's turn it is.
  std::string wrong;
  for (int n = 4; n < 6 && wrong.empty(); ++n) {
    members.push_back(join_over(r, device));
    wrong = members.back().context != nullptr ? talk(r, members.back(), 1) : "no context";
  }
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(second.context, second.number, true);
  return wrong;
}

// Its only port is down while the team meets, and comes up a little later.
std::string waits(Rank& r) {
  const Port& port = *r.devices->rails(0).front().port;
  if (r.rank == 0) EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
  r.meeting->barrier();
  std::thread mends;
  if (r.rank == 0)
    mends = std::thread([&port] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      (void)soft::set_port_state(port.context, port.number, true);
    });
  Member member = join_over(r, 0);
  const bool made = member.context != nullptr;
  if (mends.joinable()) mends.join();
  r.meeting->barrier();
  EXPECT_GIN(made);
  return talk(r, member, 1);
}

}  // namespace

TEST_CASE("Which port a GIN connection takes") {
  struct Case {
    const char* what;
    std::vector<PortsOfRank> all;
    std::size_t rank;
    std::size_t place;
  };
  // Each rank: ports, usable ones, those that are up, connections before this one.
  const Case cases[] = {
      {"one port", {{1, 1, 1, 0}, {1, 1, 1, 0}}, 1, 0},
      {"one port, third connection", {{1, 1, 1, 2}, {1, 1, 1, 2}}, 0, 0},
      {"two, the first connection", {{2, 3, 3, 0}, {2, 3, 3, 0}}, 1, 0},
      {"two, the second", {{2, 3, 3, 1}, {2, 3, 3, 1}}, 0, 1},
      {"two, the fourth", {{2, 3, 3, 3}, {2, 3, 3, 3}}, 1, 1},
      {"the first rank's turn counts", {{2, 3, 3, 1}, {2, 3, 3, 6}}, 1, 1},
      {"down here", {{2, 3, 3, 1}, {2, 3, 1, 1}}, 1, 0},
      {"down there", {{2, 3, 1, 1}, {2, 3, 3, 1}}, 1, 0},
      {"without an address there", {{2, 1, 1, 1}, {2, 3, 3, 1}}, 1, 0},
      {"of four one is down somewhere", {{4, 15, 15, 2}, {4, 15, 13, 2}, {4, 15, 15, 2}}, 0, 3},
      {"the only one is down", {{1, 1, 1, 1}, {1, 1, 0, 1}}, 1, 0},
      {"all are down: in turn, as if they were up", {{2, 3, 0, 1}, {2, 3, 0, 1}}, 0, 1},
      {"none is up everywhere", {{2, 3, 1, 1}, {2, 3, 2, 1}}, 1, 1},
      {"none is up everywhere, one is not usable", {{2, 3, 1, 1}, {2, 1, 0, 1}}, 0, 0},
      {"none in common", {{2, 1, 1, 0}, {2, 2, 2, 0}}, 1, 1},
      {"none in common, and down", {{2, 1, 1, 0}, {2, 2, 0, 0}}, 1, 1},
      {"unlike devices: each its own", {{1, 1, 1, 1}, {2, 3, 3, 1}}, 1, 1},
      {"unlike devices, the other end", {{1, 1, 1, 1}, {2, 3, 3, 1}}, 0, 0},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(choose_rail(c.all, c.rank) == c.place);
  }
}

TEST_CASE("Which second port a connection takes") {
  using Ports = std::vector<std::uint64_t>;
  struct Case {
    const char* what;
    std::vector<SecondPortsOfRank> all;
    std::optional<std::size_t> place;
  };
  // The first port is at place 0.  Ports 1 to 3 are of one host, 11 to 13 of another.
  const Ports a{1, 2, 3}, b{2, 1, 3}, far{11, 12, 13}, far_crossed{12, 11, 13};
  const Case cases[] = {
      {"the same first port", {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 1, a}}, 1},
      {"each other's", {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 2, b}}, 2},
      {"some first port at each place", {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 2, {2, 3, 1}}}, 1},
      {"a third port is down here", {{{1, 6, 2}, 1, a}, {{1, 6, 6}, 2, b}}, 1},
      {"there is no third", {{{1, 2, 2}, 1, {1, 2}}, {{1, 2, 2}, 2, {2, 1}}}, 1},
      {"of two hosts", {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 12, far_crossed}}, 1},
      {"two of each",
       {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 11, far}, {{1, 6, 6}, 2, b}, {{1, 6, 6}, 12, far_crossed}},
       2},
      {"a version that does not say",
       {{{1, 6, 6}, 1, a}, {{1, 6, 6}, 2, b}, {{1, 6, 6}, 0, {}}},
       1},
      {"the only one that is up is a first port",
       {{{1, 6, 4}, 1, {1, 3, 2}}, {{1, 6, 4}, 2, {2, 3, 1}}},
       2},
      {"none in common", {{{1, 2, 2}, 1, a}, {{1, 4, 4}, 1, a}}, std::nullopt},
      {"one rank does not want any", {{{1, 6, 6}, 1, a}, {{0, 0, 0}, 1, a}}, std::nullopt},
      {"unlike devices", {{{1, 6, 6}, 1, a}, {{2, 6, 6}, 1, a}}, std::nullopt},
      {"all are down", {{{1, 6, 0}, 1, a}, {{1, 6, 0}, 1, a}}, 1},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    for (std::size_t rank = 0; rank < c.all.size(); ++rank)
      CHECK(choose_second_rail(c.all, rank) == c.place);
  }
}

TEST_CASE("Which ports the ways between two ranks have") {
  // Ports 1 to 3 are of one host, 11 and 12 of another.
  struct Case {
    const char* what;
    PortIds a, b;
    bool swapped;
  };
  const Case cases[] = {
      {"the same first port", {1, 2}, {1, 2}, false},
      {"the same first port, other second ones", {1, 2}, {1, 3}, false},
      {"the same second port", {1, 3}, {2, 3}, false},
      {"each other's", {1, 2}, {2, 1}, true},
      {"one's first is the other's second", {1, 2}, {3, 1}, true},
      {"one's second is the other's first", {1, 2}, {2, 3}, true},
      {"of two hosts", {1, 2}, {12, 11}, false},
      {"a host without known ports", {0, 0}, {0, 0}, false},
      {"one is not known here", {0, 2}, {2, 0}, true},
      {"first ports that are not known", {0, 2}, {3, 0}, false},
      {"no second port there", {1, 2}, {2, 0}, true},
      {"no second port there, and the same first", {1, 2}, {1, 0}, false},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    for (const auto& [rank, peer] : {std::pair{0, 1}, {1, 2}, {0, 2}, {3, 1}})
      for (const std::size_t context : {0, 1, 2}) {
        const WayPorts here = choose_ways(c.a, c.b, rank, peer, context);
        const WayPorts there = choose_ways(c.b, c.a, peer, rank, context);
        CHECK(here.swapped() == c.swapped);
        // Both ends have come to the same, and one of them at most is swapped.
        CHECK(
            (here.swapped_here == there.swapped_there && here.swapped_there == there.swapped_here));
        CHECK(here.swapped_here + here.swapped_there == (c.swapped ? 1 : 0));
        // No port has a part in both ways.
        const auto at = [](const PortIds& ids, int port) {
          return port == 0 ? ids.first : ids.second;
        };
        for (const int way : {0, 1})
          for (const std::uint64_t port : {at(c.a, here.here(way)), at(c.b, here.there(way))})
            for (const std::uint64_t other :
                 {at(c.a, here.here(1 - way)), at(c.b, here.there(1 - way))})
              CHECK((port == 0 || port != other));
      }
  }
  // To itself.
  CHECK(!choose_ways({1, 2}, {1, 2}, 1, 1, 0).swapped());
  // The lower rank's first port, or the higher one's, has the first way, by turns.
  const auto lower_is_first = [](int low, int high, std::size_t context) {
    return choose_ways({1, 2}, {2, 1}, low, high, context).here(0) == 0;
  };
  CHECK(lower_is_first(0, 1, 0));
  CHECK(!lower_is_first(0, 1, 1));
  CHECK(!lower_is_first(1, 3, 0));
  CHECK(!lower_is_first(0, 2, 0));
  CHECK(lower_is_first(1, 2, 0));
}

TEST_CASE("GIN connections over a merged device take its ports in turn") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1";
  config.failover_hold_ms = 300;
  config.failover = GENERATE(true, false);
  LogCapture log;
  CHECK(run_threads(2, in_turn, config) == "");
  for (const char* rank : {"0", "1"}) {
    const std::string of = std::string(" of rank ") + rank + " goes over soft";
    CHECK(log.has("GIN connection 0" + of + "0"));
    CHECK(log.has("GIN connection 1" + of + "1"));
    CHECK(log.has("GIN connection 2" + of + "0"));
    CHECK(log.has("GIN connection 3" + of + "1"));
    CHECK(log.has("GIN connection 4" + of + "0; not used: soft1"));
    CHECK(log.has("GIN connection 5" + of + "0; not used: soft1"));
  }
}

TEST_CASE("A GIN connection waits for its only port") {
  if (on_adapters() || on_adapter_queues()) return;
  LogCapture log;
  CHECK(run_threads(2, waits, gin_config()) == "");
}
