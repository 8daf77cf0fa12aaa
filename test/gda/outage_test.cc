// The control network of a GIN and an RMA communicator is cut: both go on, and a host that is
// really gone is found out over the queues, though nothing was under way to it.
#include <signal.h>

#include <thread>

#include "test/gda/rma_ranks.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

// Beyond gin_config()'s limit for silent peers.
constexpr std::int64_t kCut = 8 * kSecond;

std::string outage(Rank& r) {
  Member member = join(r);
  RmaMember rma = rma_join(r);
  EXPECT_GIN(member.context && rma.context);
  const auto failed = [&] {
    (void)rma.context->progress();
    return member.context->failed() || rma.context->failed();
  };
  auto kernel = member.kernel();
  r.meeting->barrier();
  {
    std::unique_ptr<Outage> cut;
    if (r.rank == 0) cut = std::make_unique<Outage>();
    EXPECT_GIN(cut == nullptr || *cut);
    const std::int64_t end = now_ns() + kCut;
    // The first rank idles, the others' kernels wait for it.
    std::thread waiter;
    int waited = 0;
    if (r.rank != 0) waiter = std::thread([&] { waited = kernel.wait_signal(0, 1); });
    while (now_ns() < end && !failed()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool gone = failed();
    if (r.rank == 0)
      for (int p = 1; p < r.ranks; ++p) TRY_GIN(kernel.signal(p, 0));
    if (waiter.joinable()) waiter.join();
    TRY_GIN(waited);
    EXPECT_GIN(!gone);
  }
  r.meeting->barrier();
  TRY_GIN(kernel.signal((r.rank + 1) % r.ranks, 1));
  TRY_GIN(kernel.wait_signal(1, 1));
  EXPECT_GIN(!failed());
  r.meeting->barrier();
  return {};
}

std::string host_crashes(Rank& r) {
  Member member = join(r);
  EXPECT_GIN(member.context);
  r.meeting->barrier();
  if (r.rank == 1) (void)raise(SIGSTOP);
  LogCapture log;
  const Outage cut;
  EXPECT_GIN(cut);
  const std::int64_t begin = now_ns();
  while (!member.context->failed() && now_ns() - begin < 60 * kSecond)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GIN(member.context->failed());
  EXPECT_GIN(now_ns() - begin > 2 * kSecond, (now_ns() - begin) / kMillisecond);
  // By the queue's retries or by the limit, whichever ends first.
  EXPECT_GIN(log.has(LogLevel::warn, "silent on the control connection") ||
             log.has(LogLevel::warn, "no sign of life on the control connection"));
  EXPECT_GIN(log.has(LogLevel::warn, "rank 1 ("));
  r.meeting->barrier();
  return {};
}
const NamedScenario host_crashes_name("host_crashes", host_crashes);

}  // namespace

TEST_CASE("GIN and RMA outlive a control network that is away for long", "[once]") {
  LogCapture log;
  CHECK(run_threads(3, outage) == "");
  CHECK(log.warnings() == std::vector<std::string>{});
}

TEST_CASE("A host of which neither network tells is given up although nothing was under way",
          "[once]") {
  NEEDS(!on_adapters(), "an adapter, or its kernel, answers for a process that is stopped");
  RankProcesses processes(2, "host_crashes");
  REQUIRE(processes.serve());  // handles
  REQUIRE(processes.serve());  // all ready
  CHECK(processes.serve_one(0));
  processes.kill(1);
  CHECK(processes.finish() == "");
}
