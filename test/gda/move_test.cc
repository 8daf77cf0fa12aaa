// A team's port fails under running kernels, and its queues go on over the device's second port:
// every byte, signal and counter is as if nothing had happened, and nothing is written twice.
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "plugin/base/counter_page.h"
#include "plugin/fabric/soft/extended.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/numbers.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr std::size_t kSlot = 24 * 1024, kSlots = 4;
constexpr std::uint64_t kRounds = 150;
constexpr int kData = 0, kCredit = 16;  // signals: the first of those from each rank

// What becomes of the first port, and when; the same for all ranks of a run.
struct Fault {
  const char* what = "";
  bool down = false;
  soft::PortLoss loss = soft::PortLoss::none;
  std::int64_t after_us = 0;
  unsigned seed = 0;
};
Fault fault;
std::uint64_t moves_counted = 0;  // moves of this process, as readers of the counters learn of them

std::size_t bytes_of(int from, int to, std::uint64_t round) {
  std::minstd_rand random(fault.seed * 7919 + static_cast<unsigned>(from * 64 + to) +
                          static_cast<unsigned>(round) * 4096);
  (void)random();
  const unsigned kind = static_cast<unsigned>(random()) % 4;
  const std::size_t most = kind == 0 ? 16 : kind == 1 ? 700 : kSlot - 16;
  return 1 + random() % most;
}
unsigned seed_of(int from, int to, std::uint64_t round) {
  return static_cast<unsigned>(round) * 64 + static_cast<unsigned>(from * 8 + to);
}

// All memory that the kernels of a rank use.
struct Windows {
  Windows(GinComm& comm, int ranks)
      : out(comm, kSlot * kSlots * static_cast<std::size_t>(ranks)),
        in(comm, kSlot * kSlots * static_cast<std::size_t>(ranks)),
        fixed(comm, 4096),
        fetched(comm, 4096 * static_cast<std::size_t>(ranks)) {}
  explicit operator bool() const { return out && in && fixed && fetched; }
  WindowMemory out, in, fixed, fetched;
};
std::size_t slot_of(int rank, std::uint64_t round) {
  return (static_cast<std::size_t>(rank) * kSlots + round % kSlots) * kSlot;
}

// Puts to one rank, each when its slot there is free again; sometimes a get between them.
std::string send_to(int to, int me, const GinKernel30& shared, Windows& w) {
  GinKernel30 kernel = shared;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    if (round >= kSlots)
      TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(kCredit + to), round - kSlots + 1));
    const std::size_t bytes = bytes_of(me, to, round), at = slot_of(to, round);
    w.out.fill(seed_of(me, to, round), at, bytes);
    PutExtras extras;
    extras.signal = kData + me;
    extras.counter = to;
    TRY_GIN(kernel.put(to, w.in.handle(), slot_of(me, round), w.out.handle(), at, bytes, extras));
    if (round % 16 != 5) continue;
    const std::size_t mine = 4096 * static_cast<std::size_t>(to);
    std::memset(w.fetched.data() + mine, 0, 4096);
    TRY_GIN(kernel.get(to, w.fixed.handle(), 0, w.fetched.handle(), mine, 4096));
    TRY_GIN(kernel.flush(to));
    const std::int64_t bad = w.fetched.mismatch(static_cast<unsigned>(1000 + to), mine, 4096);
    EXPECT_GIN(bad == -1, bad, to, static_cast<std::int64_t>(round));
  }
  TRY_GIN(kernel.flush(to));
  TRY_GIN(kernel.flush_counters(to));
  return {};
}

// Takes what one rank puts, has the memory for itself for a while, and gives it back.
std::string take_from(int from, int me, const GinKernel30& shared, Windows& w) {
  GinKernel30 kernel = shared;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(kData + from), round + 1));
    const std::size_t bytes = bytes_of(from, me, round), at = slot_of(from, round);
    const std::int64_t bad = w.in.mismatch(seed_of(from, me, round), at, bytes);
    EXPECT_GIN(bad == -1, bad, from, static_cast<std::int64_t>(round));
    w.in.fill(77, at, bytes);
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    EXPECT_GIN(w.in.mismatch(77, at, bytes) == -1, from, static_cast<std::int64_t>(round));
    TRY_GIN(kernel.signal(from, kCredit + me));
  }
  return {};
}

void strike(const Port& port) {
  std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
  if (fault.down)
    (void)soft::set_port_state(port.context, port.number, false);
  else
    (void)soft::set_port_loss(port.context, port.number, fault.loss);
}

std::string play(Rank& r, Member& member) {
  Windows w(*member.comm, r.ranks);
  EXPECT_GIN(w);
  w.fixed.fill(static_cast<unsigned>(1000 + r.rank), 0, 4096);
  const Port& first = *r.devices->rails(0).front().port;
  r.meeting->barrier();
  const auto kernel = member.kernel<GinKernel30>();
  std::vector<std::string> wrong(static_cast<std::size_t>(2 * r.ranks));
  std::vector<std::thread> threads;
  for (int p = 0; p < r.ranks; ++p) {
    const auto at = static_cast<std::size_t>(2 * p);
    threads.emplace_back([&, p, at] { wrong[at] = send_to(p, r.rank, kernel, w); });
    threads.emplace_back([&, p, at] { wrong[at + 1] = take_from(p, r.rank, kernel, w); });
  }
  if (r.rank == 0) threads.emplace_back([&first] { strike(first); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : wrong)
    if (!one.empty()) return one;
  for (int p = 0; p < r.ranks; ++p)  // nobody has waited for the last ones
    TRY_GIN(kernel.wait_signal(static_cast<std::uint64_t>(kCredit + p), kRounds));
  r.meeting->barrier();  // all has come: nothing more may
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int p = 0; p < r.ranks; ++p) {
    const auto id = static_cast<std::uint64_t>(p);
    const std::uint64_t data = kernel.read_signal(kData + id);
    const std::uint64_t credit = kernel.read_signal(kCredit + id);
    const std::uint64_t counter = kernel.read_counter(id);
    EXPECT_GIN(data == kRounds && credit == kRounds && counter == kRounds,
               static_cast<std::int64_t>(data), static_cast<std::int64_t>(credit),
               static_cast<std::int64_t>(counter));
    for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
      const std::uint64_t last = kRounds - kSlots + slot;
      EXPECT_GIN(w.in.mismatch(77, slot_of(p, last), bytes_of(p, r.rank, last)) == -1, p,
                 static_cast<std::int64_t>(slot));
    }
  }
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return {};
}

Member join_merged(Rank& r) {
  return join(r, settings30(), static_cast<int>(r.devices->count()) - 1);
}

Config merged_config() {
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1";
  config.mode = ModeChoice::proxy;
  config.gin_atomics = false;
  config.ib_timeout = 10;  // 4 ms
  return config;
}

// At the engine's looks around, at which it does all that can wait.
struct Looks final : EngineClient {
  bool turn() override { return false; }
  void look_around() override {
    if (struck && !log->has("leaves soft0 for soft1: it is down")) came_first = true;
  }
  const LogCapture* log = nullptr;
  std::atomic<bool> struck{false};
  bool came_first = false;
};
Looks* looks = nullptr;

// What a fault did to the ports of this process.
void mend(Rank& r) {
  for (int device : {0, 1}) {
    const Port& port = *r.devices->rails(device).front().port;
    (void)soft::set_port_state(port.context, port.number, true);
    (void)soft::set_port_loss(port.context, port.number, soft::PortLoss::none);
  }
}

std::string moves(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  Member member = join_merged(r);
  EXPECT_GIN(member.context);
  const std::string wrong = play(r, member);
  mend(r);
  if (r.rank != 0) return wrong;
  const counters::GinCounts& g = r.devices->counters()->process().gin[0];
  moves_counted = g.moves.get();
  const std::uint64_t longest = g.longest_move_ns.get(), all = g.moved_ns.get();
  EXPECT_GIN(moves_counted == 0 ? longest == 0 && all == 0 : longest > 0 && longest <= all,
             static_cast<std::int64_t>(longest), static_cast<std::int64_t>(all));
  return wrong;
}

// Each rank a process: the port fails of one of them alone.
std::string moves_apart(Rank& r, const Fault& one) {
  fault = one;
  r.devices = open_devices(merged_config());
  auto transport = make_gin_transport(r.devices);
  EXPECT_GIN(transport);
  r.transport = std::move(transport).take();
  EXPECT_GIN(r.devices->merge(std::array{0, 1}));
  Member member = join_merged(r);
  EXPECT_GIN(member.context);
  return play(r, member);
}
const NamedScenario apart_down("apart_down", [](Rank& r) {
  return moves_apart(r, {"down", true, {}, 2000, 11});
});
const NamedScenario apart_answers("apart_answers", [](Rank& r) {
  return moves_apart(r, {"no answer", false, soft::PortLoss::answers, 2000, 12});
});

std::string notices(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  Member member = join_merged(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  r.meeting->barrier();
  if (r.rank == 0) {
    const Port& first = *r.devices->rails(0).front().port;
    EXPECT_GIN(soft::set_port_state(first.context, first.number, false) == 0);
    looks->struck = true;
  }
  r.meeting->barrier();
  TRY_GIN(kernel.signal(1 - r.rank, 0));
  TRY_GIN(kernel.wait_signal(0, 1));
  r.meeting->barrier();
  mend(r);
  return {};
}

// The second port fails too: kernels are let go at all ranks.
std::string both_fail(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.devices->merge(std::array{0, 1}));
  r.meeting->barrier();
  Member member = join_merged(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  r.meeting->barrier();
  if (r.rank == 0)
    for (int device : {0, 1}) {
      const Port& port = *r.devices->rails(device).front().port;
      (void)soft::set_port_state(port.context, port.number, false);
    }
  const std::int64_t begin = now_ns();
  TRY_GIN(kernel.signal(1 - r.rank, 0));
  TRY_GIN(kernel.wait_signal(1, 1));  // which nobody sends: it ends because it is let go
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(now_ns() - begin < 20 * kSecond, (now_ns() - begin) / kMillisecond);
  r.meeting->barrier();
  mend(r);
  return {};
}

}  // namespace

TEST_CASE("Kernels go on over the second port when the first one fails") {
  if (on_adapters() || on_adapter_queues()) return;
  const Fault faults[] = {
      {"no fault"},
      {"down", true, {}, 3000, 1},
      {"nothing gets through", false, soft::PortLoss::all, 3000, 2},
      {"nothing arrives", false, soft::PortLoss::incoming, 3000, 3},
      {"no answer arrives, and the peer has it all", false, soft::PortLoss::answers, 3000, 4},
  };
  for (const Fault& one : faults) {
    INFO(one.what);
    fault = one;
    LogCapture log;
    CHECK(run_threads(3, moves, merged_config()) == "");
    const bool strikes = one.down || one.loss != soft::PortLoss::none;
    CHECK(log.has("leaves soft0 for soft1") == strikes);
    CHECK((moves_counted > 0) == strikes);
    if (!strikes) CHECK(log.warnings() == std::vector<std::string>{});
  }
}

TEST_CASE("Kernels go on over the second port whenever the first one fails, by seed") {
  if (on_adapters() || on_adapter_queues()) return;
  const bool long_run = number_from("TWINPATH_LONG", 0) != 0;
  const unsigned seeds = long_run ? 2000 : 12;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    std::minstd_rand random(seed * 2654435761u);
    (void)random();
    fault = {"down", true, {}, static_cast<std::int64_t>(random() % 60000), seed};
    LogCapture log;
    REQUIRE(run_threads(2 + static_cast<int>(seed % 2), moves, merged_config()) == "");
  }
}

TEST_CASE("Kernels of other processes go on over the second port, too") {
  if (on_adapters() || on_adapter_queues()) return;
  CHECK(run_processes(2, "apart_down") == "");
  CHECK(run_processes(2, "apart_answers") == "");
}

TEST_CASE("Kernels are let go when both ports fail") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  config.failover_hold_ms = 500;
  LogCapture log;
  CHECK(run_threads(2, both_fail, config) == "");
}

// Nothing here has a time limit: the engine's next look is what the adapter's word must precede.
TEST_CASE("Queues leave a port that is down before the engine looks around") {
  if (on_adapters() || on_adapter_queues()) return;
  bool late = true;
  for (int run = 0; run < 5 && late; ++run) {  // a look may come just then
    LogCapture log;
    Looks client;
    looks = &client;
    client.log = &log;
    const Config config = merged_config();
    const auto engine = Engine::of(-1, config.gin_engine, config.helper_cpus);
    engine->add(client);  // looks before others do
    CHECK(run_threads(2, notices, config) == "");
    engine->remove(client);
    late = client.came_first;
    CHECK(log.has("leaves soft0 for soft1: it is down"));
  }
  CHECK(!late);
}
