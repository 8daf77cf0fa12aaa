// vm-moves: ports of soft-RoCE fail under kernels (GIN, played by CPUs) and under puts of hosts
// (RMA), which go on over their device's second port: every byte, signal and counter is exact.
//
// Runs as root in the virtual machine of topology pair2, and changes its network.  Rank 0 has rxe0
// and rxe1, rank 1 rxe2 and rxe3; what fails is the link of the first of each.
#include <memory>
#include <optional>

#include "plugin/base/counter_page.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/needs.h"
#include "test/vm/faults/network.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr const char* kFirstLink = "a0";
constexpr const char* kSecondLink = "a1";
constexpr const char* kAddress = "10.77.0.1/24";
// An idle queue does not notice that a link is silent, nor does one to oneself: soft-RoCE sends
// that nowhere.
constexpr std::size_t kGinQueues = 4, kRmaQueues = 8, kBusy = 2;

int device_of(const Rank& r, int port) {
  const std::string name = "rxe" + std::to_string(2 * r.rank + port);
  for (int device = 0; device < static_cast<int>(r.devices->count()); ++device)
    if (r.devices->rails(device).front().port->device == name) return device;
  return -1;
}

int both_ports(const Rank& r) {
  auto device = r.devices->merge(std::array{device_of(r, 0), device_of(r, 1)});
  return device ? *device : -1;
}

std::string gin(Rank& r) {
  Member member = join(r, settings30(), both_ports(r));
  EXPECT_GIN(member.context);
  std::string wrong = play(r, member);
  if (r.rank == 0 && wrong.empty())
    wrong = count_moves(r.devices->counters()->process().gin[0].moves);
  return wrong;
}

std::string rma(Rank& r) {
  RmaMember member = rma_join(r, {.contexts = 2}, both_ports(r));
  EXPECT_GIN(member.context);
  std::string wrong = play_rma(r, member);
  if (r.rank == 0 && wrong.empty()) wrong = count_moves(r.devices->counters()->process().rma);
  return wrong;
}

struct Player {
  const char* name;
  std::string (*play)(Rank&);
  std::size_t queues;
};
constexpr Player kPlayers[] = {{"GIN", gin, kGinQueues}, {"RMA", rma, kRmaQueues}};

// All queues that ever moved, and so many, are over the first ports (0) or the second ones.  Where
// a link is silent, not those to oneself: they leave it for a word of the kernel's, or not at all.
bool all_over(int place) {
  return comes([place] {
    std::map<std::string, int> over;
    const std::string word = " goes on over rxe";
    for (const LogLine& line : fault.log->lines())
      if (const auto at = line.text.find(word);
          at != std::string::npos &&
          (fault.queues != kBusy || line.text.find("to itself") == std::string::npos))
        over[line.text.substr(0, at)] = (line.text[at + word.size()] - '0') % 2;
    std::size_t there = 0;
    for (const auto& [queue, where] : over) there += where == place ? 1 : 0;
    return there == over.size() && there >= fault.queues;
  });
}

// The first link is struck, and mended.  Programs may not end in their time where kernels spin.
template <class Strike>
std::string there_and_back(int times) {
  for (int time = 1; time <= times; ++time) {
    rest_ms(50);
    {
      std::optional<Strike> strike;
      for (int tries = 0; tries < 3 && !(strike && strike->ok()); ++tries)
        strike.emplace(kFirstLink);
      EXPECT_GIN(strike->ok(), time);
      EXPECT_GIN(all_over(1), time);
    }
    EXPECT_GIN(all_over(0), time);
  }
  return {};
}

struct AddressAway {
  explicit AddressAway(const char* device)
      : ok_(run_program({"ip", "addr", "del", kAddress, "dev", device})) {}
  ~AddressAway() {
    (void)run_program({"ip", "addr", "add", kAddress, "dev", kFirstLink, "noprefixroute"});
    (void)restore_link(kFirstLink);
  }
  AddressAway(const AddressAway&) = delete;
  AddressAway& operator=(const AddressAway&) = delete;
  bool ok() const { return ok_; }

 private:
  const bool ok_;
};

// Both links are down; the second one comes back first.
std::string both_down() {
  rest_ms(50);
  auto second = std::make_unique<LinkDown>(kSecondLink);
  EXPECT_GIN(second->ok() && comes([] { return !port_is_active("rxe1"); }));
  rest_ms(300);  // until it has been looked at
  const LinkDown first(kFirstLink);
  EXPECT_GIN(first.ok());
  rest_ms(300);
  for (const LogLine& line : fault.log->lines())
    EXPECT_GIN(line.text.find(" goes on over ") == std::string::npos);
  second.reset();
  EXPECT_GIN(all_over(1));
  return {};
}

std::string run(const Player& player, std::size_t queues, std::string (*plan)(const Port&),
                const LogCapture& log, Config config = gin_config()) {
  fault = {"on soft-RoCE", true, {}, 0, 1};
  fault.plan = plan;
  fault.log = &log;
  fault.queues = queues;
  rounds = kForAsLong + 1;
  furthest = 0;
  std::string wrong = run_threads(2, player.play, config);
  rounds = kRounds;
  if (!wrong.empty())
    for (const LogLine& line : log.lines()) wrong += line.text + "\n";
  return wrong;
}

// `moves`: of each queue, at least.
void goes_on(std::string (*plan)(const Port&), bool all, std::uint64_t moves) {
  NEEDS(on_adapters() && wait_ports_active({"rxe0", "rxe1", "rxe2", "rxe3"}),
        "not the virtual machine of pair2");
  for (const Player& player : kPlayers) {
    INFO(player.name);
    const LogCapture log;
    const std::size_t queues = all ? player.queues : kBusy;
    CHECK(run(player, queues, plan, log) == "");
    CHECK(log.has(LogLevel::info, std::string(player.name) + " of rank 0 moves from rxe0 to rxe1"));
    CHECK(moves_counted >= moves * queues);
    CHECK(wait_ports_active({"rxe0", "rxe1", "rxe2", "rxe3"}));
  }
}

// Nothing comes back: both ranks are told.
template <class Joined>
std::string ends(Rank& r, Joined member) {
  EXPECT_GIN(member.context);
  r.meeting->barrier();
  std::optional<LinkDown> first, second;
  if (r.rank == 0) {
    second.emplace(kSecondLink);
    first.emplace(kFirstLink);
  }
  EXPECT_GIN(fails_in_time(member));
  r.meeting->barrier();
  return {};
}
std::string gin_ends(Rank& r) { return ends(r, join(r, settings30(), both_ports(r))); }
std::string rma_ends(Rank& r) { return ends(r, rma_join(r, {}, both_ports(r))); }

}  // namespace

TEST_CASE("F1, F4: queues leave a port that is down, and go back, each time") {
  goes_on([](const Port&) { return there_and_back<LinkDown>(2); }, true, 4);
}

TEST_CASE("F2, F4: queues leave a port that is silent, and go back") {
  goes_on([](const Port&) { return there_and_back<Cut>(1); }, false, 2);
}

TEST_CASE("F9: queues go back to a port whose address has moved") {
  goes_on([](const Port&) { return there_and_back<AddressAway>(1); }, false, 2);
}

TEST_CASE("F6: with both ports down queues wait, and go on over the second") {
  goes_on([](const Port&) { return both_down(); }, true, 1);
}

TEST_CASE("F6: what both ports have left for good ends in time") {
  NEEDS(on_adapters() && wait_ports_active({"rxe0", "rxe1", "rxe2", "rxe3"}),
        "not the virtual machine of pair2");
  Config config = gin_config();
  config.failover_hold_ms = 1000;
  for (const auto ranks : {gin_ends, rma_ends}) {
    const LogCapture log;
    CHECK(run_threads(2, ranks, config) == "");
    CHECK(log.has(LogLevel::warn, "has been down for"));
    CHECK(wait_ports_active({"rxe0", "rxe1", "rxe2", "rxe3"}));
  }
}
