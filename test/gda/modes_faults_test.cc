// GIN in mode gda-cpu, and between modes, when something goes wrong: kernels that write work
// requests and kernels that wait for signals are let go.
#include <atomic>
#include <chrono>
#include <thread>

#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr int kDepth = 256;  // of a queue, by default
constexpr ModeChoice kByProxy = ModeChoice::proxy, kByCpu = ModeChoice::gda_cpu;

// In that mode; no context where it cannot be had.
Member join(Rank& r, ModeChoice mode) { return set_modes(r, mode, "") ? test::join(r) : Member{}; }

// A wrong key of the fabric itself: our table knows the window, the peer has given it back.
std::string window_gone(Rank& r) {
  Member member = join(r, kByCpu);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, 4096), to(*member.comm, 4096);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  TRY_GIN(kernel.signal(1 - r.rank, 0));
  TRY_GIN(kernel.wait_signal(0, 1));
  r.meeting->barrier();
  if (r.rank == 1) to.release();
  r.meeting->barrier();
  if (r.rank == 0) {
    // More than the queue holds: whoever waits for a slot comes through.
    (void)kernel.put(1, to.handle(), 0, from.handle(), 0, 64);
    const std::int64_t end = now_ns() + 10 * kSecond;
    while (!member.context->failed() && now_ns() < end) std::this_thread::yield();
    EXPECT_GIN(member.context->failed());
    std::atomic<int> through{0};
    std::vector<std::thread> producers;
    for (int t = 0; t < 4; ++t) {
      producers.emplace_back([&] {
        for (int i = 0; i < 100; ++i)
          if (kernel.put(1, to.handle(), 0, from.handle(), 0, 64) == -ETIMEDOUT) return;
        through.fetch_add(1);
      });
    }
    for (auto& t : producers) t.join();
    EXPECT_GIN(through.load() == 4, through.load());
  }
  r.meeting->barrier();
  return {};
}
const NamedScenario window_gone_name("window_gone", window_gone);

// The last rank dies; the others wait for its signals, set them back and wait again, as kernels
// that do not know of it would.
template <ModeChoice Mode>
std::string signals_of_the_dead(Rank& r) {
  Config config = gin_config();
  config.mode = Mode;
  config.ib_timeout = 18;  // 9 s with all retries: half a second is no death on a busy machine
  EXPECT_GIN(r.use(open_devices(config)));
  Member member = test::join(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel(20 * kSecond);
  const int victim = r.ranks - 1;
  TRY_GIN(kernel.signal((r.rank + 1) % r.ranks, 5, 1, 0));
  TRY_GIN(kernel.wait_signal(5, 1));
  TRY_GIN(kernel.wait_counter(0, 1));
  r.meeting->barrier();
  if (r.rank == victim)
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto& table = device::at<DeviceContext72>(member.context->device_handle());
  const auto set_back = [](const DeviceTable& words, std::uint64_t id) {
    device::atomic((&device::at<std::uint64_t>(words.buffer))[id]).store(0);
  };
  std::atomic<int> rounds{0};
  std::thread waiter([&] {
    for (int i = 0; i < 50; ++i) {
      if (kernel.wait_signal(5, 2) != 0) return;
      set_back(table.signals, 5);
      if (kernel.wait_signal(6, kernel.read_signal(6) + 1) != 0) return;
      if (kernel.wait_counter(0, 2) != 0) return;
      set_back(table.counters, 0);
      ++rounds;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int before = rounds.load();
  if (r.rank == 0) r.meeting->barrier();  // the test kills now
  const std::int64_t killed = now_ns();
  waiter.join();
  EXPECT_GIN(before == 0, before);
  EXPECT_GIN(rounds.load() == 50, rounds.load());
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(now_ns() - killed < 10 * kSecond, (now_ns() - killed) / kMillisecond);
  return {};
}
const NamedScenario dead_cpu("signals_of_the_dead_gda_cpu", signals_of_the_dead<kByCpu>);
const NamedScenario dead_proxy("signals_of_the_dead_proxy", signals_of_the_dead<kByProxy>);

// A peer whose process lives, but whose queues are gone: it cannot be reached, so waits for its
// signals end, too.
template <ModeChoice Mode>
std::string signals_of_the_gone(Rank& r) {
  Member member = join(r, Mode);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel(20 * kSecond);
  TRY_GIN(kernel.signal(1 - r.rank, 5));
  TRY_GIN(kernel.wait_signal(5, 1));
  r.meeting->barrier();
  if (r.rank == 1) member.context.reset();
  r.meeting->barrier();
  if (r.rank == 0) {
    TRY_GIN(kernel.signal(1, 5));
    const std::int64_t start = now_ns();
    for (int i = 0; i < 5; ++i) TRY_GIN(kernel.wait_signal(6, kernel.read_signal(6) + 1));
    EXPECT_GIN(now_ns() - start < 10 * kSecond);
    EXPECT_GIN(member.context->failed());
  }
  r.meeting->barrier();
  return {};
}

// Rank 0 finds that it cannot reach rank 1, which is rank 2's only news of it: its own queues are
// whole, and its kernel waits for rank 0.
template <ModeChoice Mode>
std::string told_of_the_gone(Rank& r) {
  Member member = join(r, Mode);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel(20 * kSecond);
  for (int p = 0; p < r.ranks; ++p) TRY_GIN(kernel.signal(p, 5));
  TRY_GIN(kernel.wait_signal(5, static_cast<std::uint64_t>(r.ranks)));
  r.meeting->barrier();
  if (r.rank == 1) member.context.reset();
  r.meeting->barrier();
  const std::int64_t start = now_ns();
  // Kernels go on behind an error: more than a completion queue holds, so that nothing of the first
  // is left.
  if (r.rank == 0)
    for (int n = 0; n < 3 * kDepth; ++n) TRY_GIN(kernel.signal(1, 5));
  if (r.rank == 2) {
    TRY_GIN(kernel.wait_signal(6, 1));
    EXPECT_GIN(now_ns() - start < 10 * kSecond);
    EXPECT_GIN(member.context->failed());
  }
  r.meeting->barrier();
  return {};
}

// `name` with three ranks, the last of which is killed.
std::string with_one_killed(const char* name) {
  constexpr int kRanks = 3;
  RankProcesses processes(kRanks, name);
  if (!processes.serve() || !processes.serve() || !processes.serve_one(0))  // handles, ready, now
    return "a rank ended too early";
  processes.kill(kRanks - 1);
  return processes.finish();
}

}  // namespace

TEST_CASE("A key that the peer has withdrawn releases producers in mode gda-cpu") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  SECTION("between threads") { CHECK(run_threads(2, window_gone) == ""); }
  SECTION("between processes") { CHECK(run_processes(2, "window_gone") == ""); }
}

TEST_CASE("A killed peer ends waits for its signals, again and again") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  SECTION("gda-cpu") { CHECK(with_one_killed("signals_of_the_dead_gda_cpu") == ""); }
  SECTION("proxy") { CHECK(with_one_killed("signals_of_the_dead_proxy") == ""); }
}

TEST_CASE("A peer that cannot be reached ends waits for its signals") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  SECTION("gda-cpu") { CHECK(run_threads(2, signals_of_the_gone<kByCpu>) == ""); }
  SECTION("proxy") { CHECK(run_threads(2, signals_of_the_gone<kByProxy>) == ""); }
}

TEST_CASE("A rank that cannot reach another ends the waits of all") {
  NEEDS(!on_adapters(), "modes other than proxy are the soft HCA's");
  SECTION("gda-cpu") { CHECK(run_threads(3, told_of_the_gone<kByCpu>) == ""); }
  SECTION("proxy") { CHECK(run_threads(3, told_of_the_gone<kByProxy>) == ""); }
  SECTION("gda") {
    NEEDS(!TWINPATH_SANITIZES_THREADS, "an adapter writes completions beside who reads them");
    CHECK(run_threads(3, told_of_the_gone<ModeChoice::gda>) == "");
  }
}
