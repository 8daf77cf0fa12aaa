// A team's port fails under running kernels whose queues the soft HCA's engine copies (mode
// gda-cpu): what begins afterwards goes by the keys of the team's other port.
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gda/served/back/soft_ways.h"
#include "plugin/base/counter_page.h"
#include "test/gda/move_seeds.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

Config copied_config() {
  Config config = merged_config();
  config.mode = ModeChoice::gda_cpu;
  config.gin_atomics = AtomicsChoice::automatic;
  return config;
}

// Work requests that were posted at the second port.
std::atomic<int> posted{0};
int (*post_below)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
int count_posted(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  ++posted;
  return post_below(qp, wr, bad);
}

// For longer than a port may be down, if it does not come back.
std::string copied(Rank& r) {
  if (r.rank == 0) {
    posted = 0;
    auto& post = r.devices->rails(1).front().port->context->ops.post_send;
    if (post != count_posted) post_below = std::exchange(post, count_posted);
  }
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  std::string wrong = play(r, member);
  if (wrong.empty() && fault.back_us == 0 && fault.log == nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_GIN(!member.context->failed());
  }
  if (r.rank == 0) moves_counted = r.devices->counters()->process().gin[0].moves.moves.load();
  r.meeting->barrier();
  mend(r);
  return wrong;
}

// The first port fails of one process alone.  What is under way between processes by an atomic of
// the adapter nobody can tell, so no word in a window is signalled.
std::string copied_apart(Rank& r) {
  fault = {"down", true, {}, 2000, 31};
  words_in_windows = false;
  EXPECT_GIN(merge_apart(r, copied_config()));
  Member member = join(r, settings30(), last_device(r));
  EXPECT_GIN(member.context);
  const LogCapture log;
  if (std::string wrong = play(r, member); !wrong.empty()) return wrong;
  EXPECT_GIN(log.has("leaves soft0 for soft1: it is down"));
  return {};
}
const NamedScenario apart("copied_apart", copied_apart);

// A signal in a window of another process takes a queue pair.
std::string words_apart(Rank& r) {
  EXPECT_GIN(merge_apart(r, copied_config()));
  Member member = join(r, settings30(), last_device(r));
  EXPECT_GIN(member.context);
  WindowMemory words(*member.comm, 4096);
  EXPECT_GIN(words);
  auto kernel = member.kernel<GinKernel30>();
  const Port& first = *r.devices->rails(0).front().port;
  std::uint64_t sent = 0;
  for (const bool up : {true, false, true, false}) {
    r.meeting->barrier();
    if (r.rank == 0) (void)soft::set_port_state(first.context, first.number, up);
    r.meeting->barrier();
    for (int i = 0; i < 50; ++i) {
      TRY_GIN(kernel.signal_word(1 - r.rank, words.handle(), 8));
      TRY_GIN(kernel.signal(1 - r.rank, 0));
      ++sent;
      if (i % 8 == 0) TRY_GIN(kernel.flush(1 - r.rank));
      TRY_GIN(kernel.wait_signal(0, sent));
    }
    TRY_GIN(kernel.flush(1 - r.rank));
    TRY_GIN(wait_word(words, 8, sent));
  }
  r.meeting->barrier();
  EXPECT_GIN(words.word(8) == sent && kernel.read_signal(0) == sent);
  EXPECT_GIN(!member.context->failed());
  mend(r);
  r.meeting->barrier();
  return {};
}
const NamedScenario by_pairs("copied_words_apart", words_apart);

// Both ports, or the first, are lost for a while, and the second one alone comes back, or neither
// in time.
bool returns = true, first_alone = false;
std::string both_down(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  if (std::string wrong = talk(member, 1); !wrong.empty()) return wrong;
  r.meeting->barrier();
  const Port& second = *r.devices->rails(1).front().port;
  if (r.rank == 0)
    for (int port = 0; port < (first_alone ? 1 : 2); ++port) {
      const Port& lost = *r.devices->rails(port).front().port;
      (void)soft::set_port_state(lost.context, lost.number, false);
    }
  r.meeting->barrier();
  TRY_GIN(kernel.signal(1 - r.rank, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_GIN(!returns || (kernel.read_signal(1) == 0 && !member.context->failed()));
  r.meeting->barrier();
  if (r.rank == 0 && returns) (void)soft::set_port_state(second.context, second.number, true);
  TRY_GIN(kernel.wait_signal(1, 1));
  const bool as_it_should =
      returns ? !member.context->failed() : comes([&] { return member.context->failed(); });
  EXPECT_GIN(as_it_should);
  r.meeting->barrier();
  mend(r);
  return {};
}

// Neither rank hears of the other by the control network, for so long that both ask
// (peer_watch.cc).
std::string silent(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const Port& first = *r.devices->rails(0).front().port;
  if (r.rank == 0) (void)soft::set_port_state(first.context, first.number, false);
  r.meeting->barrier();
  {
    std::unique_ptr<Outage> cut;
    if (r.rank == 0) cut = std::make_unique<Outage>();
    EXPECT_GIN(cut == nullptr || *cut);
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    EXPECT_GIN(!member.context->failed());
  }
  r.meeting->barrier();
  const std::string wrong = talk(member, 1);
  r.meeting->barrier();
  mend(r);
  return wrong;
}

// What is sent to a rank that has left comes over neither port.
std::string to_the_gone(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  const std::string wrong = talk(member, 1);
  r.meeting->barrier();
  if (r.rank == 1) member = {};
  r.meeting->barrier();
  if (r.rank == 0) {
    auto kernel = member.kernel<GinKernel30>(10 * kSecond);
    const std::int64_t begin = now_ns();
    (void)kernel.signal(1, 0);
    (void)kernel.flush(1);
    EXPECT_GIN(comes([&] { return member.context->failed(); }));
    EXPECT_GIN(now_ns() - begin < 8 * kSecond, (now_ns() - begin) / kMillisecond);
  }
  r.meeting->barrier();
  return wrong;
}

// Each end has lost another of its two ports, and neither knows of the other's.
std::string no_common_port(Rank& r) {
  Config config = copied_config();
  config.failover_hold_ms = 500;
  EXPECT_GIN(merge_apart(r, config));
  Member member = join(r, settings30(), last_device(r));
  EXPECT_GIN(member.context);
  const LogCapture log;
  if (std::string wrong = talk(member, 1); !wrong.empty()) return wrong;
  const Port& lost = *r.devices->rails(r.rank).front().port;
  r.meeting->barrier();
  (void)soft::set_port_state(lost.context, lost.number, false);
  r.meeting->barrier();
  auto kernel = member.kernel<GinKernel30>(10 * kSecond);
  const std::int64_t begin = now_ns();
  (void)kernel.signal(1 - r.rank, 0);
  (void)kernel.wait_signal(0, 2);
  EXPECT_GIN(comes([&] { return member.context->failed(); }));
  const std::int64_t after_ms = (now_ns() - begin) / kMillisecond;
  EXPECT_GIN(after_ms >= 1400 && after_ms < 8000, after_ms);
  // Or the other one has given up before, and its queue pairs with it.
  EXPECT_GIN(log.has("neither soft0 nor soft1 has been up at both ends for 1500 ms") ||
             log.has("the peer did not answer") || log.has("gave it up"));
  r.meeting->barrier();
  return {};
}
const NamedScenario crossed_loss("copied_no_common_port", no_common_port);

// An adapter that says what the test says of its two ports.
struct TwoSaid {
  static inline std::array<bool, 2> down{};
  struct Said final : soft::Reach {
    explicit Said(std::size_t of) : port(of) {}
    const std::size_t port;
    soft::Reached remote(std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t,
                         soft::Place&) override {
      return soft::Reached::no;
    }
    soft::Reached local(std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t,
                        soft::Place&) const override {
      return soft::Reached::no;
    }
    bool copy(const soft::Place&, const soft::Place&, std::uint64_t) const override {
      return false;
    }
    bool down() override { return TwoSaid::down[port]; }
    std::uint64_t order() const override { return 7 + port; }
  };
};

}  // namespace

TEST_CASE("F1: What the engine copies goes on by the second port's keys", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  alone = GENERATE(false, true);
  for (const std::int64_t back_us : {0, 2000}) {
    fault = {"down", true, {}, 3000, 41, back_us};
    const UntilStruck waits;
    const LogCapture log;
    Config config = copied_config();
    config.failover_hold_ms = 200;
    CHECK(run_threads(3, copied, config) == "");
    CHECK(posted == 0);
    if (back_us != 0) continue;  // perhaps before anything was asked for
    CHECK(log.has("leaves soft0 for soft1: it is down"));
    CHECK(moves_counted > 0);
  }
  alone = false;
}

TEST_CASE("F1: What the engine copies goes on where ranks have each other's ports", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = copied_config();
  config.soft_hcas = "soft0,soft1";
  fault = {"down", true, {}, 3000, 42};
  struck = GENERATE(0, 1);
  const UntilStruck waits;
  const LogCapture log;
  CHECK(run_threads(
            2,
            [](Rank& r) -> std::string {
              Member member = crossed_join(r);
              return play_and_mend(r, member);
            },
            config) == "");
  CHECK(log.has("leaves " + struck_port() + " for " + other_port() + ": it is down"));
  struck = 0;
}

TEST_CASE("F5: What the engine copies goes on while the first port comes and goes, by seed",
          "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault flaps{"flaps", true};
    flaps.times = 20;
    flaps.flaps = true;
    REQUIRE(by_seed(seed, flaps, log, {copied, 1, copied_config}) == "");
    CHECK(log.has("leaves soft0 for soft1: it is down"));
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

TEST_CASE("F1: What the engine copies to other processes goes on, too", "[once]") {
  NEEDS(kSeesBarriers, "the thread sanitizer does not see what another process adds");
  if (on_adapters() || on_adapter_queues()) return;
  CHECK(run_processes(2, "copied_apart") == "");
  CHECK(run_processes(2, "copied_words_apart") == "");
  CHECK(run_processes(2, "copied_no_common_port") == "");
}

TEST_CASE("F6: With both ports down what the engine copies waits, as long as they may be",
          "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = copied_config();
  config.ib_timeout = 20;
  returns = GENERATE(true, false);
  if (!returns) config.failover_hold_ms = 500;
  const LogCapture log;
  CHECK(run_threads(2, both_down, config) == "");
  CHECK(log.has("leaves soft0 for soft1: it is down") == returns);
  CHECK(log.has("; the local port soft1:1 has been down") == !returns);
}

TEST_CASE("What the engine copies stays where the other port's adapter has no atomics", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = copied_config();
  config.soft_hcas = "soft0,soft1,like=mana,soft2";
  config.ib_timeout = 20;
  config.failover_hold_ms = 300;
  returns = false;
  first_alone = true;
  const LogCapture log;
  CHECK(run_threads(2, both_down, config) == "");
  first_alone = false;
  CHECK(!log.has("leaves soft0 for soft1"));
  CHECK(log.has("the local port soft0:1 has been down"));
}

TEST_CASE("A silent peer is asked over the port that is up", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  const LogCapture log;
  CHECK(run_threads(2, silent, copied_config()) == "");
}

TEST_CASE("Kernels that send to a rank that has left are let go, whatever ports are up", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  const LogCapture log;
  CHECK(run_threads(2, to_the_gone, copied_config()) == "");
}

TEST_CASE("A queue that is copied takes the first way whose port is up, and waits for one") {
  const SoftHca hca{.load = nullptr,
                    .load_mlx5 = nullptr,
                    .adapters = nullptr,
                    .gid_version = nullptr,
                    .reach = [](ibv_qp* qp) -> std::unique_ptr<soft::Reach> {
                      return std::make_unique<TwoSaid::Said>(qp->qp_num);
                    }};
  ibv_qp first{}, second{};
  second.qp_num = 1;
  std::atomic<const char*> lacks{nullptr};
  counters::MoveCounts counts;
  SoftWaysSetup setup;
  setup.soft = &hca;
  setup.ways = {{{&first, "one"}, {&second, "two"}}};
  setup.lacks = &lacks;
  setup.counts = &counts;
  setup.hold = 40 * kMillisecond;
  const LogCapture log;
  SoftWays ways(setup);
  struct Row {
    bool first_down, second_down;
    const char* lacks;
    int way;
    std::uint64_t moves;
  };
  const Row rows[] = {{false, false, nullptr, 0, 0}, {false, true, nullptr, 0, 0},
                      {true, true, nullptr, -1, 0},  {true, false, nullptr, 1, 1},
                      {true, false, nullptr, 1, 1},  {true, true, nullptr, -1, 1},
                      {true, false, nullptr, 1, 1},  {false, true, nullptr, 0, 2},
                      {true, false, "no key", 0, 2}, {true, true, "no key", 0, 2}};
  for (const Row& row : rows) {
    TwoSaid::down = {row.first_down, row.second_down};
    lacks = row.lacks;
    CAPTURE(row.first_down, row.second_down, row.way);
    CHECK(ways.choose("the queue") == row.way);
    CHECK(counts.moves == row.moves);
    CHECK(ways.order() == 7);  // that of copies which are under way
  }
  CHECK(log.has("the queue leaves one for two: it is down"));
  CHECK(log.has(LogLevel::info, "the queue goes back to one, which works again"));

  lacks = nullptr;
  TwoSaid::down = {true, true};
  const std::int64_t begin = now_ns();
  int none = SoftWays::kNone;
  while (none == SoftWays::kNone && now_ns() < begin + kLimit) none = ways.choose("the queue");
  CHECK(none == SoftWays::kLost);
  CHECK(now_ns() - begin >= 40 * kMillisecond);

  setup.ways[1] = {};
  SoftWays only(setup);
  CHECK(only.choose("the queue") == 0);
}
