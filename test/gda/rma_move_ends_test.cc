// A team's port fails under RMA, and with it, or before, a peer, the second port or a window.
#include <unistd.h>

#include "test/gda/move_seeds.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// A port may be down for 300 ms, and the adapters' retries last longer.
Config patient_config() {
  Config config = merged_config();
  config.failover_hold_ms = 300;
  config.ib_timeout = 20;
  return config;
}

constexpr int kLost = 3;

// The last rank is killed, or leaves, and then the first one's port goes down for good: those that
// are left go on, for longer than a port may be down.
std::string without_the_last(Rank& r, bool killed) {
  EXPECT_GIN(merge_apart(r, patient_config()));
  RmaMember member = rma_join(r, {}, last_device(r));
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 4096);
  EXPECT_GIN(memory);
  r.meeting->barrier();
  if (r.rank == kLost - 1 && !killed) return {};
  if (r.rank == kLost - 1)
    for (;;) ::usleep(10000);
  if (r.rank == 0 && killed) r.meeting->barrier();  // the test kills now
  for (const std::int64_t gone = now_ns() + 200 * kMillisecond; now_ns() < gone; sched_yield())
    (void)context.progress();
  if (r.rank == 0) {
    const Port& port = *r.devices->rails(0).front().port;
    EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
  }
  const RmaSignal signal{memory.at(64), 1};
  const std::int64_t begin = now_ns();
  std::uint64_t count = 0;
  for (; now_ns() < begin + 1500 * kMillisecond; ++count) {
    auto put = context.put(0, 1 - r.rank, {memory.at(1024), memory.at(2048), 512}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
  }
  // Both have made as many, and seen them, before one of them leaves.
  const RmaSignal last{memory.at(72), 1};
  auto put = context.put(0, 1 - r.rank, {}, &last);
  EXPECT_GIN(put && rma_await(context, memory, 72, 1));
  EXPECT_RMA_OK(rma_wait(*put));
  EXPECT_GIN(memory.word(64) > 0 && count > 0);
  for (const std::int64_t end = now_ns() + 300 * kMillisecond; now_ns() < end; sched_yield())
    EXPECT_RMA_OK(context.progress());
  return {};
}
const NamedScenario killed_before("rma_killed_before_moves",
                                  [](Rank& r) { return without_the_last(r, true); });
const NamedScenario left_before("rma_left_before_moves",
                                [](Rank& r) { return without_the_last(r, false); });

// Sources are given back while a queue moves: that waits until all has been read.
std::string given_back(Rank& r) {
  constexpr std::size_t kBytes = 50000;
  constexpr std::uint64_t kPuts = 20;
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaPattern from(*member.comm, kBytes * kPuts), to(*member.comm, kBytes * kPuts);
  RmaMemory words(*member.comm, 64);
  EXPECT_GIN(from && to && words);
  from.fill(static_cast<unsigned>(r.rank), 0, kBytes * kPuts);
  const Port& first = *r.devices->rails(0).front().port;
  r.meeting->barrier();
  if (r.rank == 0) EXPECT_GIN(soft::set_port_state(first.context, first.number, false) == 0);
  r.meeting->barrier();
  std::vector<RmaRequest*> requests;
  for (std::uint64_t i = 0; i < kPuts; ++i) {
    const RmaSignal signal{words.at(0), 1};
    auto put =
        context.put(0, 1 - r.rank, {from.at(i * kBytes), to.at(i * kBytes), kBytes}, &signal);
    EXPECT_GIN(put);
    requests.push_back(*put);
  }
  from.release();
  from.fill(77, 0, kBytes * kPuts);
  for (RmaRequest* request : requests) EXPECT_RMA_OK(rma_wait(request, 0));
  EXPECT_GIN(rma_await(context, words, 0, kPuts));
  EXPECT_GIN(to.has(static_cast<unsigned>(1 - r.rank), 0, kBytes * kPuts));
  EXPECT_GIN(words.word(0) == kPuts && !context.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// The ports of a place go down for good, `both` or the first, and nobody can move.
std::string nowhere_to_go(Rank& r, bool both) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 12288);
  EXPECT_GIN(memory);
  const RmaSignal signal{memory.at(8), 1};
  r.meeting->barrier();
  const std::int64_t down = now_ns();
  r.meeting->barrier();
  if (r.rank == 0)
    for (int device = 0; device < (both ? 2 : 1); ++device) {
      const Port& port = *r.devices->rails(device).front().port;
      EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
    }
  r.meeting->barrier();
  auto put = context.put(0, 1 - r.rank, {memory.at(4096), memory.at(8192), 4096}, &signal);
  EXPECT_GIN(put);
  const Status status = rma_wait(*put, 10 * kSecond);
  while (!context.failed() && now_ns() < down + 10 * kSecond) (void)context.progress();
  const std::int64_t after_ms = (now_ns() - down) / kMillisecond;
  r.meeting->barrier();
  if (r.rank == 0) mend(r);
  EXPECT_GIN(status == Status::remote);
  EXPECT_GIN(context.failed());
  EXPECT_GIN(after_ms >= 250 && after_ms < 3000, after_ms);
  r.meeting->barrier();
  return {};
}

std::string goes_on(RmaContext& context, std::int64_t ms) {
  for (const std::int64_t end = now_ns() + ms * kMillisecond; now_ns() < end; sched_yield())
    EXPECT_RMA_OK(context.progress());
  return {};
}

bool first_is_back = false;

// The second port is lost, too, once all is over it, and nothing can go back yet.
std::string lost_twice(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = play_rma(r, member);
  if (!wrong.empty()) return wrong;
  const Port& second = *r.devices->rails(1).front().port;
  if (r.rank == 0 && first_is_back) set(*r.devices->rails(0).front().port, true);
  const std::int64_t down = now_ns();
  r.meeting->barrier();
  if (r.rank == 0) EXPECT_GIN(soft::set_port_state(second.context, second.number, false) == 0);
  while (!member.context->failed() && now_ns() < down + 10 * kSecond)
    (void)member.context->progress();
  const std::int64_t after_ms = (now_ns() - down) / kMillisecond;
  r.meeting->barrier();
  mend(r);
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(after_ms >= 250 && after_ms < 3000, after_ms);
  r.meeting->barrier();
  return {};
}

// The second port is lost in the moment at which queues leave the first one for it, and comes back
// or not.
bool second_returns = false;

std::string lost_while_moving(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 12288);
  EXPECT_GIN(memory);
  const Port& second = *r.devices->rails(1).front().port;
  r.meeting->barrier();
  const std::int64_t down = now_ns();
  if (r.rank == 0) {
    lost_on_return = &second;
    armed = true;
    set(*r.devices->rails(0).front().port, false);
  }
  r.meeting->barrier();
  const RmaSignal signal{memory.at(8), 1};
  auto put = context.put(0, 1 - r.rank, {memory.at(4096), memory.at(8192), 4096}, &signal);
  EXPECT_GIN(put);
  while (r.rank == 0 && armed && now_ns() < down + kLimit) (void)context.progress();
  if (second_returns) {
    if (std::string wrong = goes_on(context, 10); !wrong.empty()) return wrong;
    if (r.rank == 0) set(second, true);
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_GIN(rma_await(context, memory, 8, 1));
    if (std::string wrong = goes_on(context, 20); !wrong.empty()) return wrong;
    EXPECT_GIN(memory.word(8) == 1 && !context.failed());
  } else {
    while (!context.failed() && now_ns() < down + kLimit) (void)context.progress();
    const std::int64_t after_ms = (now_ns() - down) / kMillisecond;
    EXPECT_GIN(context.failed() && after_ms < 4000, after_ms);
  }
  r.meeting->barrier();
  mend(r);
  r.meeting->barrier();
  return {};
}

void lose_while_moving(bool comes_back, int timeout, const char* told) {
  second_returns = comes_back;
  LogCapture log;
  Config config = patient_config();
  config.ib_timeout = timeout;
  fault = {"down", true};
  leaving = "leaves soft0 for soft1";
  sink_behind = current_sink();
  (void)set_log_sink(&losing_sink);
  CHECK(run_threads(2, lost_while_moving, config) == "");
  (void)set_log_sink(sink_behind);
  leaving = "goes back to soft0";
  // A rank that had not yet asked over the second port stays, and one whose moves are over is
  // there: either's time may be over first.
  CHECK((log.has(told) || (!comes_back && log.has(LogLevel::warn, ":1 has been down for"))));
}

// The first rank has left when a port is lost, and works again: it is offered nothing.
std::string without_the_first(Rank& r) {
  RmaMember member = rma_join_first(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 64);
  EXPECT_GIN(memory);
  const Port& first = *r.devices->rails(0).front().port;
  r.meeting->barrier();
  if (r.rank == 0) return {};
  const RmaSignal signal{memory.at(0), 1};
  for (const std::uint64_t turn : {1, 2, 3}) {
    if (std::string wrong = goes_on(context, 150); !wrong.empty()) return wrong;
    if (r.rank == 1) set(first, turn == 2);  // down, up, down
    auto put = context.put(0, 3 - r.rank, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_GIN(rma_await(context, memory, 0, turn));
  }
  EXPECT_GIN(!context.failed());
  if (std::string wrong = goes_on(context, 100); !wrong.empty()) return wrong;
  mend(r);
  return {};
}

}  // namespace

TEST_CASE("RMA moves without a rank that was killed, or has left", "[once]") {
  if (on_adapters()) return;
  RankProcesses processes(kLost, "rma_killed_before_moves");
  REQUIRE(processes.serve());  // handles
  REQUIRE(processes.serve());  // all ready
  processes.kill(kLost - 1);
  CHECK(processes.serve_one(0));
  CHECK(processes.finish() == "");
  CHECK(run_processes(kLost, "rma_left_before_moves") == "");
}

TEST_CASE("An RMA window's end waits for queues that move", "[once]") {
  if (on_adapters()) return;
  const LogCapture log;
  CHECK(run_threads(2, given_back, merged_config()) == "");
  CHECK(log.has("leaves soft0 for soft1"));
}

TEST_CASE("RMA ends in time when both ports are lost", "[once]") {
  if (on_adapters()) return;
  const LogCapture log;
  CHECK(run_threads(
            2, [](Rank& r) { return nowhere_to_go(r, true); }, patient_config()) == "");
  CHECK(log.has(LogLevel::warn, "(TWINPATH_FAILOVER_HOLD_MS), check its cable"));
  CHECK(!log.has("leaves soft0"));
  fault = {"down", true, {}, 3000, 1};
  CHECK(run_threads(2, lost_twice, patient_config()) == "");
  CHECK(log.has(LogLevel::warn, "the local port soft1:1 has been down for"));
}

TEST_CASE("RMA ends in time when its second port is lost before the first one may be used again",
          "[once]") {
  if (on_adapters()) return;
  const LogCapture log;
  Config config = patient_config();
  config.failover_pace.settle_ms = 3600 * 1000;
  fault = {"down", true, {}, 3000, 1};
  first_is_back = true;
  CHECK(run_threads(2, lost_twice, config) == "");
  first_is_back = false;
  CHECK(log.has(LogLevel::warn, "the local port soft1:1 has been down for"));
}

TEST_CASE("RMA ends in time, or goes on, when the second port is lost as queues leave for it",
          "[once]") {
  if (on_adapters()) return;
  lose_while_moving(false, 20, "cannot go on over soft1: nothing comes from the peer");
  lose_while_moving(true, 14, " goes on over soft1");
}

TEST_CASE("RMA goes to and fro without a rank that has left", "[once]") {
  if (on_adapters()) return;
  const LogCapture log;
  fault = {"down", true};
  CHECK(run_threads(3, without_the_first, soon_back()) == "");
  CHECK(log.has("goes back to soft0"));
  CHECK(log.has(": soft1 does not reach it"));
}

TEST_CASE("RMA with signals by atomics does not move, and ends when its port is lost", "[once]") {
  if (on_adapters()) return;
  Config config = patient_config();
  config.gin_atomics = AtomicsChoice::always;
  LogCapture log;
  CHECK(run_threads(
            2, [](Rank& r) { return nowhere_to_go(r, false); }, config) == "");
  CHECK(!log.has("moves from soft0"));
  CHECK(log.has(LogLevel::warn, "the local port soft0:1 has been down for"));
}
