// A team's port fails under puts and gets of the host, and its queues go on over the second port:
// every byte and every signal is as if nothing had happened, and nothing is written twice.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <random>

#include "gda/served/back/work_request_id.h"
#include "test/gda/late_completions.h"
#include "test/gda/move_seeds.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/numbers.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

bool receives_late = false;  // all receives, in their order; else each last send

std::int64_t late(const ibv_wc& wc) {
  if (!receives_late)
    return WorkRequestId::is(wc, WorkRequestId::kLastSend) ? 50 * kMillisecond : 0;
  return WorkRequestId::is_receive(wc) || WorkRequestId::is(wc, WorkRequestId::kLastReceive)
             ? 4 * kMillisecond
             : 0;
}

std::string moves_late(Rank& r) {
  if (r.rank == 0) LateCompletions::hold(r, late);
  return rma_moves<RmaMemory>(r);
}

// Each rank a process: the port fails of one of them alone.
std::string rma_moves_apart(Rank& r, const Fault& one, const Config& config = merged_config()) {
  fault = one;
  EXPECT_GIN(merge_apart(r, config));
  RmaMember member = rma_join(r, {.contexts = 2}, last_device(r));
  EXPECT_GIN(member.context);
  return play_rma(r, member);
}
const NamedScenario rma_apart_down("rma_apart_down", [](Rank& r) {
  return rma_moves_apart(r, {"down", true, {}, 2000, 11});
});
const NamedScenario rma_apart_answers("rma_apart_answers", [](Rank& r) {
  return rma_moves_apart(r, {"no answer", false, soft::PortLoss::answers, 2000, 12});
});

std::string often_apart(Rank& r) {
  const LogCapture log;
  Fault often{"often", true, {}, 5000, 13, 5000};
  often.times = 3;
  often.log = &log;
  often.queues = static_cast<std::size_t>(2 * r.ranks);
  rounds = 2000;
  return rma_moves_apart(r, often, soon_back());
}
const NamedScenario rma_apart_often("rma_apart_often", often_apart);

bool mute = false;
const LogCapture* waiting_log = nullptr;

// The caller at one end does nothing for a while, which the other one's adapter cannot tell from a
// port that is mute: more signals are sent than the end has receives for.
std::string waits_for_caller(Rank& r) {
  constexpr std::uint64_t kSignals = 200;
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(words);
  std::vector<RmaRequest*> requests;
  if (r.rank == 0) {
    const Port& first = *r.devices->rails(0).front().port;
    if (mute) (void)soft::set_port_loss(first.context, first.number, soft::PortLoss::all);
    const RmaSignal signal{words.at(0), 1};
    for (std::uint64_t n = 0; n < kSignals; ++n) {
      auto put = context.put(0, 1, {}, &signal);
      EXPECT_GIN(put);
      requests.push_back(*put);
    }
    for (const std::int64_t end = now_ns() + 600 * kMillisecond; now_ns() < end; sched_yield())
      EXPECT_RMA_OK(context.progress());
    EXPECT_GIN(!waiting_log->has("leaves soft0"));
  }
  r.meeting->barrier();
  bool done = false;
  const std::int64_t end = now_ns() + kLimit;
  for (std::size_t n = 0; n < requests.size() && now_ns() < end; n += done ? 1 : 0)
    EXPECT_RMA_OK(requests[n]->test(done));
  EXPECT_GIN(r.rank == 0 || rma_await(context, words, 0, kSignals));
  EXPECT_GIN(driven({&context}, [&r] { return r.meeting->barrier(), true; }));
  EXPECT_GIN(words.word(0) == (r.rank == 1 ? kSignals : 0) && !context.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

}  // namespace

TEST_CASE("RMA leaves a silent port long before its adapter gives up", "[once]") {
  if (on_adapters()) return;
  leave_silent_ports(rma_moves<RmaMemory>);
}

TEST_CASE("RMA waits for a peer whose caller does nothing, and then leaves a silent port",
          "[once]") {
  if (on_adapters()) return;
  Config config = merged_config();
  config.ib_timeout = 22;
  config.stall_ms = 50;
  mute = GENERATE(false, true);
  const LogCapture log;
  waiting_log = &log;
  CHECK(run_threads(2, waits_for_caller, config) == "");
  CHECK(log.has("leaves soft0 for soft1: it acknowledges nothing") == mute);
  CHECK(log.has("leaves soft0") == mute);
}

TEST_CASE("F1: RMA goes on over the second port when the first one fails", "[once]") {
  if (on_adapters()) return;
  alone = GENERATE(false, true);
  const Fault faults[] = {
      {"no fault"},
      {"down", true, {}, 3000, 1},
      {"down, and back while queues move", true, {}, 3000, 6, 4000},
      {"nothing gets through", false, soft::PortLoss::all, 3000, 2},
      {"nothing arrives", false, soft::PortLoss::incoming, 3000, 3},
      {"no answer arrives, and the peer has it all", false, soft::PortLoss::answers, 3000, 4},
  };
  for (const Fault& one : faults) {
    INFO(one.what << (alone ? ", the second one in reserve" : ""));
    fault = one;
    const bool strikes = one.down || one.loss != soft::PortLoss::none;
    std::optional<UntilStruck> waits;
    if (strikes) waits.emplace();
    LogCapture log;
    CHECK(run_threads(3, rma_moves<RmaMemory>, merged_config()) == "");
    CHECK(log.has(LogLevel::info, "RMA of rank 0 moves from soft0 to soft1 if that port fails"));
    if (one.back_us == 0) {
      CHECK(log.has("leaves soft0 for soft1") == strikes);
      CHECK((moves_counted > 0) == strikes);
    }
    if (!strikes) CHECK(log.warnings() == std::vector<std::string>{});
  }
  alone = false;
}

TEST_CASE("F1: RMA goes on over the second port with all in host memory, whatever the adapters",
          "[once]") {
  if (on_adapters()) return;
  Config config = merged_config();
  config.gin_atomics = GENERATE(AtomicsChoice::automatic, AtomicsChoice::never);
  fault = {"down", true, {}, 3000, 15};
  const UntilStruck waits;
  const LogCapture log;
  CHECK(run_threads(3, rma_moves<RmaMemory>, config, unordered) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK(moves_counted > 0);
}

TEST_CASE("F1: RMA goes on over the second port whenever the first one fails, by seed", "[once]") {
  if (on_adapters()) return;
  const unsigned seeds = number_from("TWINPATH_LONG", 0) != 0 ? 1000 : 8;
  const auto first = static_cast<unsigned>(number_from("TWINPATH_SEED", 1));
  for (unsigned seed = first; seed < first + seeds; ++seed) {
    INFO("seed " << seed);
    std::minstd_rand random(seed * 2654435761u);
    (void)random();
    fault = {"down", seed % 4 != 1, soft::PortLoss::answers,
             static_cast<std::int64_t>(random() % 60000), seed};
    if (seed % 3 == 0) fault.back_us = static_cast<std::int64_t>(random() % 3000);
    alone = seed / 2 % 2 != 0;
    LogCapture log;
    REQUIRE(run_threads(2 + static_cast<int>(seed % 2), rma_moves<RmaMemory>, merged_config()) ==
            "");
  }
  alone = false;
}

TEST_CASE("F1: RMA moves once all that came over the first port is known", "[once]") {
  if (on_adapters()) return;
  for (const soft::PortLoss loss : {soft::PortLoss::none, soft::PortLoss::answers})
    for (const bool receives : {false, true}) {
      fault = {"late", loss == soft::PortLoss::none, loss, 5000, 7};
      receives_late = receives;
      const UntilStruck waits;
      const LogCapture log;
      CHECK(run_threads(2, moves_late, merged_config()) == "");
      CHECK(log.has("leaves soft0 for soft1"));
    }
}

TEST_CASE("RMA of other processes goes on over the second port, too", "[once]") {
  if (on_adapters()) return;
  CHECK(run_processes(2, "rma_apart_down") == "");
  CHECK(run_processes(2, "rma_apart_answers") == "");
}

TEST_CASE("RMA of other processes goes back to the first port, too", "[once]") {
  if (on_adapters()) return;
  CHECK(run_processes(3, "rma_apart_often") == "");
}

TEST_CASE("F4: RMA goes back to the first port each time that it works again, by seed", "[once]") {
  if (on_adapters()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault often{"often", seed % 4 != 0, soft::PortLoss::all};
    often.times = 4;
    REQUIRE(by_seed(seed, often, log, {rma_moves<RmaMemory>, queues_of(often)}) == "");
    CHECK(moves_counted >= 8 * fault.queues);
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

TEST_CASE("F4: RMA leaves a silent port each time, and goes back, by seed", "[once]") {
  if (on_adapters()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault silent{"silent", false, seed % 2 != 0 ? soft::PortLoss::all : soft::PortLoss::answers};
    silent.times = 3;
    const auto patient = [] {
      Config config = soon_back();
      config.ib_timeout = 20;
      config.stall_ms = 30;
      return config;
    };
    REQUIRE(by_seed(seed, silent, log, {rma_moves<RmaMemory>, queues_of(silent), patient}) == "");
    CHECK(log.has("leaves soft0 for soft1: it acknowledges nothing"));
  });
}

TEST_CASE("F5: RMA goes on while the first port comes and goes, by seed", "[once]") {
  if (on_adapters()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault flaps{"flaps", seed % 4 != 0, soft::PortLoss::all};
    flaps.times = 20;
    flaps.flaps = true;
    REQUIRE(by_seed(seed, flaps, log, {rma_moves<RmaMemory>}) == "");
  });
}

TEST_CASE("F5: RMA goes on when the first port is lost as queues go back to it", "[once]") {
  if (on_adapters()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault returns{"returns", seed % 4 != 0, soft::PortLoss::all};
    returns.returns = true;
    returns.times = 3;
    REQUIRE(by_seed(seed, returns, log, {rma_moves<RmaMemory>, queues_of(returns)}) == "");
    CHECK(log.has("does not stay on soft0"));
  });
}

TEST_CASE("RMA does not go back before the first port has been up for its time", "[once]") {
  if (on_adapters()) return;
  Config config = merged_config();
  config.failover_pace.settle_ms = 3600 * 1000;
  fault = {"back soon", true, {}, 2000, 14, 50000};
  const UntilStruck waits;
  const LogCapture log;
  CHECK(run_threads(2, rma_moves<RmaMemory>, config) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK(!log.has("goes back to soft0"));
}

TEST_CASE("Signals of RMA are counted where queues may then move, if nobody chose", "[once]") {
  if (on_adapters()) return;
  const auto [choice, standby, counted] =
      GENERATE(table<AtomicsChoice, int, bool>({{AtomicsChoice::automatic, 1, true},
                                                {AtomicsChoice::automatic, 0, false},
                                                {AtomicsChoice::always, 1, false},
                                                {AtomicsChoice::never, 0, true}}));
  CAPTURE(static_cast<int>(choice), standby);
  Config config = merged_config();
  config.gin_atomics = choice;
  config.standby_ports = standby;
  alone = true;
  const LogCapture log;
  CHECK(run_threads(2, rma_meets, config) == "");
  CHECK(log.has(LogLevel::info, counted ? "soft0: signals without atomics"
                                        : "soft0: signals by the adapters' atomics"));
  alone = false;
}
