// What readers of the counters learn of kernels' queues, and what can be told by them alone.
#include <cstring>
#include <thread>

#include "gda/abi/operation.h"
#include "plugin/base/counter_page.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr int kPuts = 40;

std::uint64_t operations(const counters::GinCounts& g, OperationKind kind) {
  return g.operations[static_cast<std::size_t>(kind)].get();
}

// Both ranks put with a signal and a counter; then rank 0's kernel writes a key that does not
// exist.
std::string counted(Rank& r) {
  const counters::Process& page = r.devices->counters()->process();
  Member member = join(r);
  EXPECT_GIN(member.context);
  EXPECT_GIN(page.gin_used.load() == 1, page.gin_used.load());
  const counters::GinCounts& g = page.gin[0];
  EXPECT_GIN(g.gpu == -1 && g.since_ns > 0, g.gpu);
  WindowMemory from(*member.comm, 4096), to(*member.comm, 4096);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  PutExtras extras;
  extras.signal = extras.counter = 0;
  r.meeting->barrier();
  for (int n = 0; n < kPuts; ++n)
    TRY_GIN(kernel.put(1 - r.rank, to.handle(), 0, from.handle(), 0, 1000, extras));
  TRY_GIN(kernel.wait_signal(0, kPuts));
  TRY_GIN(kernel.wait_counter(0, kPuts));
  r.meeting->barrier();
  // The last of it may have been done a moment before it is counted.
  for (const std::int64_t end = now_ns() + 5 * kSecond;
       operations(g, OperationKind::fetch_add) < 4 * kPuts && now_ns() < end;)
    std::this_thread::yield();
  r.meeting->barrier();
  // Two ranks; a put with a signal and a counter is a write, two additions and a wait.
  EXPECT_GIN(operations(g, OperationKind::write) == 2 * kPuts, operations(g, OperationKind::write));
  EXPECT_GIN(operations(g, OperationKind::fetch_add) == 4 * kPuts,
             operations(g, OperationKind::fetch_add));
  EXPECT_GIN(g.operations[kCountedWait].get() == 2 * kPuts, g.operations[kCountedWait].get());
  EXPECT_GIN(operations(g, OperationKind::read) == 0);
  // It sees several rung for at once.
  EXPECT_GIN(g.doorbells.get() > 0 && g.doorbells.get() <= 8 * kPuts, g.doorbells.get());
  const auto age = static_cast<std::uint64_t>(now_ns() - g.since_ns);
  EXPECT_GIN(g.busy_ns.get() > 0 && g.busy_ns.get() < age, g.busy_ns.get());
  EXPECT_GIN(g.failed_queues.get() == 0 && g.released.get() == 0);
  r.meeting->barrier();
  if (r.rank == 0) {
    Producer<DeviceQp28> queue = kernel.queue_to(1);
    std::uint64_t first = 0;
    TRY_GIN(queue.reserve(1, first));
    queue.write(first, make_write(first, queue.qpn(), 0, 0x00bad000, 0, 0x00bad000, 64));
    TRY_GIN(queue.submit(first, 1));
    const std::int64_t end = now_ns() + 10 * kSecond;
    while (!member.context->failed() && now_ns() < end) std::this_thread::yield();
    EXPECT_GIN(member.context->failed());
    while (g.released.get() == 0 && now_ns() < end) std::this_thread::yield();
    EXPECT_GIN(g.failed_queues.get() == 1, g.failed_queues.get());
    EXPECT_GIN(g.released.get() == 1, g.released.get());
  }
  r.meeting->barrier();
  return {};
}

// A slow adapter has puts of a window that goes: it goes when they have ended.
std::string window_that_goes(Rank& r) {
  constexpr int kTaken = 16;
  const counters::GinCounts& g = r.devices->counters()->process().gin[0];
  Member member = join(r);
  EXPECT_GIN(member.context);
  WindowMemory from(*member.comm, 4096), to(*member.comm, 4096);
  EXPECT_GIN(from && to);
  auto kernel = member.kernel();
  r.meeting->barrier();
  for (int n = 0; n < kTaken; ++n)
    TRY_GIN(kernel.put(1 - r.rank, to.handle(), 0, from.handle(), 0, 1000));
  for (const std::int64_t end = now_ns() + kLimit;
       operations(g, OperationKind::write) < 2 * kTaken && now_ns() < end;)
    std::this_thread::yield();
  from.release();
  TRY_GIN(kernel.flush(1 - r.rank));
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  return {};
}

}  // namespace

TEST_CASE("A window goes when what was taken of it before has ended") {
  if (on_adapter_queues()) return;  // nobody tells what an adapter has taken
  Config config = gin_config();
  config.soft_faults = "delay_us=3000";
  CHECK(run_threads(2, window_that_goes, config) == "");
}

TEST_CASE("What kernels ask for is counted by kind, and who was let go") {
  if (on_adapter_queues()) return;  // an adapter that serves them tells nobody
  LogCapture log;
  CHECK(run_threads(2, counted) == "");
}

TEST_CASE("Engines one after the other go on with the counts of their GPU") {
  const auto page = CounterPage::create("here", "test", {});
  REQUIRE(page != nullptr);
  auto first = page->open_gin(0);
  auto second = page->open_gin(0);  // begins before that has ended
  const auto other = page->open_gin(1);
  CHECK(first != second);
  CHECK(page->process().gin_used.load() == 3);
  first->doorbells.add(7);
  const counters::GinCounts* place = first.get();
  first.reset();
  first = page->open_gin(0);
  CHECK(first.get() == place);
  CHECK(first->doorbells.get() == 7);
  CHECK(page->process().gin_used.load() == 3);
  // Beyond the places it counts unseen.
  std::vector<std::shared_ptr<counters::GinCounts>> all;
  for (int gpu = 2; gpu < 2 + static_cast<int>(counters::kMaxGinEngines); ++gpu)
    all.push_back(page->open_gin(gpu));
  CHECK(page->process().gin_used.load() == counters::kMaxGinEngines);
  all.back()->doorbells.add(1);
}
