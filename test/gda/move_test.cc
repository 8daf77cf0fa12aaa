// A team's port fails under running kernels, and its queues go on over the device's second port:
// every byte, signal and counter is as if nothing had happened, and nothing is written twice.
#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gda/served/back/work_request_id.h"
#include "plugin/base/counter_page.h"
#include "test/gda/late_completions.h"
#include "test/gda/move_seeds.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// A queue pair's last send comes 50 ms late.
std::int64_t last_late(const ibv_wc& wc) {
  return WorkRequestId::is(wc, WorkRequestId::kLastSend) ? 50 * kMillisecond : 0;
}

std::string late_moves(Rank& r) {
  if (fault.last_late && r.rank == 0) LateCompletions::hold(r, last_late);
  return moves(r);
}

// Adapters that learn of a receive posted to a queue pair in error when they are told of the error
// again, as soft-RoCE.
struct Unheard {
  static inline std::mutex lock;
  static inline std::vector<std::pair<ibv_qp*, std::uint64_t>> receives;
  static inline int (*post_below)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
  static inline int (*modify_below)(ibv_qp*, ibv_qp_attr*, int) = nullptr;

  static int post(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    if (WorkRequestId::number(wr->wr_id) != WorkRequestId::kLastReceive)
      return post_below(qp, wr, bad);
    const std::lock_guard hold(lock);
    receives.emplace_back(qp, wr->wr_id);
    return 0;
  }
  static int modify(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    const std::lock_guard hold(lock);
    const int error = modify_below(qp, attr, mask);
    for (auto& [of, id] : receives) {
      if (of != qp || attr->qp_state != IBV_QPS_ERR) continue;
      ibv_recv_wr wr{};
      wr.wr_id = id;
      ibv_recv_wr* bad = nullptr;
      (void)post_below(std::exchange(of, nullptr), &wr, &bad);
    }
    return error;
  }
  static void on(Fabric& fabric) {
    receives.clear();
    modify_below = std::exchange(fabric.verbs.modify_qp, modify);
    for (Port& port : fabric.ports)
      if (port.context->ops.post_recv != post)
        post_below = std::exchange(port.context->ops.post_recv, post);
  }
};

// Each rank a process: the port fails of one of them alone.
std::string moves_apart(Rank& r, const Fault& one, const Config& config = merged_config()) {
  fault = one;
  EXPECT_GIN(merge_apart(r, config));
  Member member = join(r, settings30(), last_device(r));
  EXPECT_GIN(member.context);
  return play(r, member);
}
const NamedScenario apart_down("apart_down", [](Rank& r) {
  return moves_apart(r, {"down", true, {}, 2000, 11});
});
const NamedScenario apart_answers("apart_answers", [](Rank& r) {
  return moves_apart(r, {"no answer", false, soft::PortLoss::answers, 2000, 12});
});

std::string often_apart(Rank& r) {
  const LogCapture log;
  Fault often{"often", true, {}, 5000, 13, 5000};
  often.times = 3;
  often.log = &log;
  often.queues = static_cast<std::size_t>(r.ranks);
  rounds = 2000;
  return moves_apart(r, often, soon_back());
}
const NamedScenario apart_often("apart_often", often_apart);

}  // namespace

TEST_CASE("Kernels go on over the second port when the first one fails", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  alone = GENERATE(false, true);
  const Fault faults[] = {
      {"no fault"},
      {"down", true, {}, 3000, 1},
      {"nothing gets through", false, soft::PortLoss::all, 3000, 2},
      {"nothing arrives", false, soft::PortLoss::incoming, 3000, 3},
      {"no answer arrives, and the peer has it all", false, soft::PortLoss::answers, 3000, 4},
      {"down, and queues are drained late", true, {}, 3000, 5, 0, true},
  };
  for (const Fault& one : faults) {
    INFO(one.what << (alone ? ", the second one in reserve" : ""));
    fault = one;
    const bool strikes = one.down || one.loss != soft::PortLoss::none;
    std::optional<UntilStruck> waits;
    if (strikes) waits.emplace();
    LogCapture log;
    CHECK(run_threads(3, late_moves, merged_config()) == "");
    CHECK(log.has("leaves soft0 for soft1") == strikes);
    CHECK((moves_counted > 0) == strikes);
    if (!strikes) CHECK(log.warnings() == std::vector<std::string>{});
  }
  alone = false;
}

TEST_CASE("F1: Kernels go on over the second port with all in host memory, whatever the adapters",
          "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  config.gin_atomics = GENERATE(AtomicsChoice::automatic, AtomicsChoice::never);
  fault = {"down", true, {}, 3000, 15};
  const UntilStruck waits;
  const LogCapture log;
  CHECK(run_threads(3, moves, config, unordered) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK(moves_counted > 0);
}

TEST_CASE("Kernels go on where an adapter must be told again of a queue pair's end", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  fault = {"down", true, {}, 3000, 16};
  const UntilStruck waits;
  const LogCapture log;
  CHECK(run_threads(2, moves, merged_config(), Unheard::on) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK(!Unheard::receives.empty());
}

TEST_CASE("Kernels go on over the second port whenever the first one fails, by seed", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  const bool long_run = number_from("TWINPATH_LONG", 0) != 0;
  const unsigned seeds = long_run ? 2000 : 12;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    std::minstd_rand random(seed * 2654435761u);
    (void)random();
    fault = {"down", true, {}, static_cast<std::int64_t>(random() % 60000), seed};
    if (seed % 3 == 0) fault.back_us = static_cast<std::int64_t>(random() % 3000);
    alone = seed / 2 % 2 != 0;
    LogCapture log;
    REQUIRE(run_threads(2 + static_cast<int>(seed % 2), moves, merged_config()) == "");
  }
  alone = false;
}

TEST_CASE("F4: Kernels go back to the first port each time that it works again, by seed",
          "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault often{"often", seed % 4 != 0, soft::PortLoss::all};
    often.times = 4;
    REQUIRE(by_seed(seed, often, log) == "");
    CHECK(moves_counted >= 8u * static_cast<unsigned>(fault.queues) / (2 + seed % 2));
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

TEST_CASE("F5: Kernels go on while the first port comes and goes, by seed", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault flaps{"flaps", seed % 4 != 0, soft::PortLoss::all};
    flaps.times = 20;
    flaps.flaps = true;
    REQUIRE(by_seed(seed, flaps, log) == "");
  });
}

TEST_CASE("F5: Kernels go on when the first port is lost as queues go back to it", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault returns{"returns", seed % 4 != 0, soft::PortLoss::all};
    returns.returns = true;
    returns.times = 3;
    REQUIRE(by_seed(seed, returns, log) == "");
    CHECK(log.has("does not stay on soft0"));
  });
}

namespace {

// Long enough for some looks at ports, should one of them be too early.
std::string moves_and_rests(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = play(r, member);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  r.meeting->barrier();
  mend(r);
  return wrong;
}

}  // namespace

TEST_CASE("Queues do not go back before the first port has been up for its time", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  config.failover_pace.settle_ms = 3600 * 1000;
  fault = {"back soon", true, {}, 2000, 14, 50000};
  const UntilStruck waits;
  LogCapture log;
  CHECK(run_threads(2, moves_and_rests, config) == "");
  CHECK(log.has("leaves soft0 for soft1"));
  CHECK(!log.has("goes back to soft0"));
}

TEST_CASE("Kernels leave a silent port long before its adapter gives up", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  leave_silent_ports(moves);
}

TEST_CASE("Kernels of other processes go on over the second port, too", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  CHECK(run_processes(2, "apart_down") == "");
  CHECK(run_processes(2, "apart_answers") == "");
}

TEST_CASE("Kernels of other processes go back to the first port, too", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  CHECK(run_processes(3, "apart_often") == "");
}

namespace {

std::string meets(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = talk(member, 1);
  r.meeting->barrier();
  return wrong;
}

}  // namespace

TEST_CASE("Signals are counted where queues may then move, if nobody chose", "[once]") {
  if (on_adapters()) return;
  using enum AtomicsChoice;
  struct Row {
    AtomicsChoice choice;
    ModeChoice mode;
    const char* peer_mode;
    int standby;
    bool failover, moves;
  };
  const auto row =
      GENERATE(values<Row>({{automatic, ModeChoice::proxy, "", 1, true, true},
                            {automatic, ModeChoice::stage, "", 1, true, true},
                            {never, ModeChoice::proxy, "", 1, true, true},
                            {always, ModeChoice::proxy, "", 1, true, false},
                            {automatic, ModeChoice::proxy, "", 1, false, false},
                            {automatic, ModeChoice::proxy, "", 0, true, false},
                            {automatic, ModeChoice::gda_cpu, "", 1, true, true},
                            {automatic, ModeChoice::automatic, "", 1, true, true},
                            {automatic, ModeChoice::proxy, "1:gda-cpu", 1, true, false}}));
  CAPTURE(static_cast<int>(row.choice), static_cast<int>(row.mode), row.peer_mode, row.standby,
          row.failover);
  Config config = merged_config();
  config.gin_atomics = row.choice;
  config.mode = row.mode;
  config.peer_mode = row.peer_mode;
  config.standby_ports = row.standby;
  config.failover = row.failover;
  alone = true;
  const LogCapture log;
  CHECK(run_threads(2, meets, config) == "");
  CHECK(log.has(LogLevel::info, "GIN of rank 0 moves from soft0 to soft1") == row.moves);
  alone = false;
}
