// GIN when something goes wrong: what a kernel may write, peers that die, work left behind.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "plugin/fabric/soft/extended.h"
#include "plugin/rdma/handle.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// Rank 0's kernel writes a key that does not exist to rank 1: that queue fails, others do not.
std::string bad_key(Rank& r) {
  ContextSettings settings = settings28();
  settings.queue_depth = 16;
  Member member = join(r, settings);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, 4096), to(*member.comm, 4096);
  EXPECT_GIN(from && to);
  from.fill(static_cast<unsigned>(r.rank), 0, 4096);
  auto kernel = member.kernel();
  if (r.rank == 0) {
    Producer<DeviceQp28> queue = kernel.queue_to(1);
    std::uint64_t first = 0;
    TRY_GIN(queue.reserve(1, first));
    queue.write(first, make_write(first, queue.qpn(), 0, 0x00bad000, 0, 0x00bad000, 64));
    TRY_GIN(queue.submit(first, 1));
    const int code = queue.poll(first);
    EXPECT_GIN(code == -EIO || code == 0, code);  // 0: let go already
    const std::int64_t end = now_ns() + 10 * kSecond;
    while (!member.context->failed() && now_ns() < end) std::this_thread::yield();
    EXPECT_GIN(member.context->failed());
    // Kernels at that queue come through, however many work requests they have.
    for (int i = 0; i < 40; ++i) {
      TRY_GIN(queue.reserve(1, first));
      queue.write(first, make_nop(first, queue.qpn()));
      TRY_GIN(queue.submit(first, 1));
      const int flushed = queue.poll(first);
      EXPECT_GIN(flushed == -EIO || flushed == 0, flushed, i);
    }
  }
  r.meeting->barrier();
  // The queues between all others, and of rank 0 to rank 2, work as before.
  PutExtras extras;
  extras.signal = 1;
  for (int p = 0; p < r.ranks; ++p) {
    if (r.rank == 0 && p == 1) continue;
    if (r.rank == 1 && p == 0 && on_adapter_queues()) continue;  // an adapter's end has failed
    TRY_GIN(kernel.put(p, to.handle(), static_cast<std::uint64_t>(r.rank) * 1024, from.handle(), 0,
                       1000, extras));
  }
  const bool one_less = r.rank == 1 || (r.rank == 0 && on_adapter_queues());
  const int writers = one_less ? r.ranks - 1 : r.ranks;
  TRY_GIN(kernel.wait_signal(1, static_cast<std::uint64_t>(writers)));
  for (int p = 0; p < r.ranks; ++p) {
    if (r.rank == 1 && p == 0) continue;
    if (r.rank == 0 && p == 1 && on_adapter_queues()) continue;
    EXPECT_GIN(to.mismatch(static_cast<unsigned>(p), static_cast<std::size_t>(p) * 1024, 1000) ==
               -1);
  }
  EXPECT_GIN(member.context->failed() == (r.rank == 0));
  r.meeting->barrier();
  return {};
}
const NamedScenario bad_key_name("bad_key", bad_key);

// A window that has been given back is refused by our own table; nothing reaches the fabric.
std::string closed_window(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel();
  WindowMemory to(*member.comm, 4096);
  std::uint32_t stale = 0;
  {
    WindowMemory from(*member.comm, 4096);
    EXPECT_GIN(from && to);
    stale = device::at<DeviceWindow>(from.handle()).lkey_be;
  }
  r.meeting->barrier();
  Producer<DeviceQp28> queue = kernel.queue_to((r.rank + 1) % r.ranks);
  std::uint64_t first = 0;
  TRY_GIN(queue.reserve(1, first));
  queue.write(first, make_write(first, queue.qpn(), 0, stale, 0, stale, 64));
  TRY_GIN(queue.submit(first, 1));
  (void)queue.poll(first);
  const std::int64_t end = now_ns() + 10 * kSecond;
  while (!member.context->failed() && now_ns() < end) std::this_thread::yield();
  EXPECT_GIN(member.context->failed());
  r.meeting->barrier();
  return {};
}

// The last rank dies while the others put to it and wait for its signals.
std::string peer_dies(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, 1 << 20), to(*member.comm, 1 << 20);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  r.meeting->barrier();
  const int victim = r.ranks - 1;
  if (r.rank == victim)
    for (;;) (void)kernel.put(0, to.handle(), 0, from.handle(), 0, 4096);
  // More than the queue holds: producers wait for slots when the peer dies.
  std::atomic<std::int64_t> released_at{0};
  std::thread producer([&] {
    PutExtras extras;
    extras.signal = 0;
    extras.counter = 0;
    std::int64_t failed_since = 0;
    while (failed_since == 0 || now_ns() < failed_since + kSecond) {
      if (kernel.put(victim, to.handle(), 0, from.handle(), 0, 1 << 20, extras) == -ETIMEDOUT)
        return;
      if (failed_since == 0 && member.context->failed()) failed_since = now_ns();
    }
    if (kernel.flush(victim) == -ETIMEDOUT) return;
    if (kernel.flush_counters(victim) == -ETIMEDOUT) return;
    released_at.store(now_ns());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (r.rank == 0) r.meeting->barrier();  // the test kills now
  const std::int64_t killed = now_ns();
  while (!member.context->failed() && now_ns() < killed + 20 * kSecond) std::this_thread::yield();
  const std::int64_t after_ms = (now_ns() - killed) / kMillisecond;
  producer.join();
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(after_ms < 10000, after_ms);
  EXPECT_GIN(released_at.load() != 0);
  // Teardown waits for nobody.
  const std::int64_t start = now_ns();
  from.release();
  to.release();
  member.context.reset();
  member.comm.reset();
  EXPECT_GIN(now_ns() - start < 5 * kSecond, (now_ns() - start) / kMillisecond);
  return {};
}
const NamedScenario peer_dies_name("peer_dies", peer_dies);

// Rank 0's port goes down for a moment, which costs nothing, and then for good: its own kernels are
// let go, and those of the other rank, which wait for its signals.
std::string port_lost(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, 4096), to(*member.comm, 4096);
  EXPECT_GIN(from && to);
  auto second = member.comm->create_context(settings28());
  EXPECT_GIN(second);
  auto kernel = member.kernel();
  const Port& port = *r.devices->rails(0).front().port;
  PutExtras extras;
  extras.signal = 0;
  r.meeting->barrier();
  if (r.rank == 0) {
    EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
    std::thread back([&port] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      (void)soft::set_port_state(port.context, port.number, true);
    });
    const int sent = kernel.put(1, to.handle(), 0, from.handle(), 0, 4096, extras);
    back.join();
    EXPECT_GIN(sent == 0, sent);
    // On a busy machine the engine may be late to see that the port is back.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } else {
    TRY_GIN(kernel.wait_signal(0, 1));
  }
  r.meeting->barrier();
  const std::int64_t down = now_ns();  // at no rank after the port is down
  r.meeting->barrier();
  if (r.rank == 0) EXPECT_GIN(soft::set_port_state(port.context, port.number, false) == 0);
  // A kernel that only waits knows of nothing by itself.
  std::thread waits([&] { (void)kernel.wait_signal(0, 1'000'000); });
  while (!(member.context->failed() && (*second)->failed()) && now_ns() < down + 10 * kSecond)
    std::this_thread::yield();
  const std::int64_t after_ms = (now_ns() - down) / kMillisecond;
  waits.join();
  const std::int64_t let_go_ms = (now_ns() - down) / kMillisecond;
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(port.context, port.number, true);
  EXPECT_GIN(member.context->failed() && (*second)->failed());
  EXPECT_GIN(after_ms >= 250 && after_ms < 3000, after_ms);
  EXPECT_GIN(let_go_ms < 5000, let_go_ms);
  const std::int64_t start = now_ns();
  from.release();
  to.release();
  second->reset();
  member.context.reset();
  member.comm.reset();
  EXPECT_GIN(now_ns() - start < 5 * kSecond);
  return {};
}

// Contexts go while work requests are queued and under way, in no order among the ranks.
std::string outstanding_work(Rank& r) {
  for (int i = 0; i < 5; ++i) {
    Member member = join(r);
    EXPECT_GIN(member.context);
    WindowMemory from(*member.comm, 4 << 20), to(*member.comm, 4 << 20);
    EXPECT_GIN(from && to);
    auto kernel = member.kernel();
    r.meeting->barrier();
    PutExtras extras;
    extras.signal = 0;
    extras.counter = 0;
    for (int n = 0; n < 60; ++n)
      TRY_GIN(
          kernel.put((r.rank + 1) % r.ranks, to.handle(), 0, from.handle(), 0, 1 << 16, extras));
    const std::int64_t start = now_ns();
    auto gone = std::move(member.context);
    gone.reset();
    EXPECT_GIN(now_ns() - start < 5 * kSecond);
    r.meeting->barrier();  // windows are what peers still write to
  }
  return {};
}
const NamedScenario outstanding_work_name("outstanding_work", outstanding_work);

// One rank's wrong arguments fail the call everywhere, at once.
std::string refused_settings(Rank& r) {
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  const std::int64_t start = now_ns();
  ContextSettings settings = settings28();
  if (r.rank == 1) settings.queue_depth = 32769;
  EXPECT_GIN(!comm->create_context(settings));
  settings = settings28();
  if (r.rank == 0) settings.layout = DeviceLayout::v2_30_72;
  if (r.rank == 0) settings.contexts = 2;
  EXPECT_GIN(!comm->create_context(settings));
  void* memory = r.rank == 1 ? nullptr : &settings;
  EXPECT_GIN(!comm->register_window(memory, 64, MemoryType::host, 0, -1, {}));
  EXPECT_GIN(comm->deregister_window(nullptr) == Status::bad_argument);
  EXPECT_GIN(now_ns() - start < 5 * kSecond);
  auto context = comm->create_context(settings28());
  EXPECT_GIN(context);
  GinKernel28 kernel((*context)->device_handle(), r.rank, kLimit);
  TRY_GIN(kernel.signal((r.rank + 1) % r.ranks, 0));
  TRY_GIN(kernel.wait_signal(0, 1));
  r.meeting->barrier();
  return {};
}

// The others' handles, as if they came from other hosts.
class Elsewhere final : public Meeting {
 public:
  explicit Elsewhere(Rank& r) : rank_(r), meeting_(*r.meeting) {}
  std::vector<HandleBytesArray> exchange(const HandleBytesArray& mine) override {
    auto all = meeting_.exchange(mine);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Handle h;
      std::string why;
      if (static_cast<int>(i) == rank_.rank || !decode_handle(all[i], h, why)) continue;
      ++h.host_hash;
      encode_handle(h, all[i]);
    }
    return all;
  }
  void barrier() override { meeting_.barrier(); }

 private:
  Rank& rank_;
  Meeting& meeting_;
};

// All ranks are on one adapter, that is at one address.
std::string one_address(Rank& r) {
  Elsewhere elsewhere(r);
  r.meeting = &elsewhere;
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  auto context = comm->create_context(settings28());
  EXPECT_GIN(!context);
  EXPECT_GIN(context.status() == Status::system, static_cast<int>(context.status()));
  return {};
}

std::string too_many_windows(Rank& r) {
  auto comm = r.connect();
  EXPECT_GIN(comm != nullptr);
  std::vector<std::unique_ptr<WindowMemory>> windows;
  for (int i = 1; i < 4096; ++i) {
    windows.push_back(std::make_unique<WindowMemory>(*comm, 64));
    EXPECT_GIN(*windows.back(), i);
  }
  EXPECT_GIN(!WindowMemory(*comm, 64));
  windows.pop_back();
  EXPECT_GIN(WindowMemory(*comm, 64));
  EXPECT_GIN(WindowMemory(*comm, 64));
  return {};
}

}  // namespace

TEST_CASE("One address on two hosts is refused with its name") {
  NEEDS(!on_adapters(), "ranks may be on adapters of their own");
  LogCapture log;
  CHECK(run_threads(2, one_address) == "");
  CHECK(log.has(LogLevel::warn, "have the same address ::ffff:"));
  CHECK(log.has(LogLevel::warn, "soft0 here and soft0 of rank 1 ("));
}

TEST_CASE("One window too many is refused at all ranks, and there is room again behind it") {
  NEEDS(!on_adapter_queues(), "windows of an adapter's queues are the adapter's to count");
  test::LogCapture log;
  CHECK(run_threads(2, too_many_windows) == "");
  CHECK(log.has(LogLevel::warn, "4095 windows and contexts' tables"));
}

TEST_CASE("A wrong key fails its own queue and lets the kernels there go") {
  SECTION("between threads") { CHECK(run_threads(3, bad_key) == ""); }
  // What an adapter has read before a barrier of other processes seems to it to be read later.
  if (kSeesBarriers || !on_adapter_queues()) {
    SECTION("between processes") { CHECK(run_processes(3, "bad_key") == ""); }
  }
}

TEST_CASE("A window that was given back is refused") { CHECK(run_threads(2, closed_window) == ""); }

TEST_CASE("Kernels are let go within 10 s when a peer dies") {
  constexpr int kRanks = 3;
  RankProcesses processes(kRanks, "peer_dies");
  REQUIRE(processes.serve());  // handles
  REQUIRE(processes.serve());  // all ready
  REQUIRE(processes.serve_one(0));
  processes.kill(kRanks - 1);
  CHECK(processes.finish() == "");
}

TEST_CASE(
    "F13: A port that is down for longer than the hold time lets the kernels of all ranks go") {
  NEEDS(!on_adapters(), "ports of the soft HCA can be told to go down");
  Config config = gin_config();
  config.soft_hcas = "soft0,soft1";
  config.standby_ports = 0;  // move_test.cc has those that move
  config.failover_hold_ms = 300;
  config.ib_timeout = 20;  // the adapter's own patience is longer
  test::LogCapture log;
  CHECK(run_threads(2, port_lost, config) == "");
  CHECK(log.has(LogLevel::warn, "the local port soft0:1 has been down for"));
  CHECK(log.has(LogLevel::warn, "or gave it up"));
  CHECK_FALSE(log.has("a kernel wrote a work request"));  // no kernel is to blame
  const std::vector<std::string> warnings = log.warnings();
  CHECK(std::count_if(warnings.begin(), warnings.end(), [](const std::string& text) {
          return text.find("all kernels are let go") != std::string::npos;
        }) == 1);  // of two contexts
}

TEST_CASE("Contexts are destroyed with work under way") {
  SECTION("between threads") { CHECK(run_threads(2, outstanding_work) == ""); }
  SECTION("between processes") { CHECK(run_processes(3, "outstanding_work") == ""); }
}

TEST_CASE("What one rank cannot do fails everywhere at once") {
  CHECK(run_threads(3, refused_settings) == "");
}
