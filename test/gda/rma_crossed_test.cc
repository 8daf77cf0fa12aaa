// The same as crossed_test.cc, of puts and gets of the host.
#include "test/gda/crossed.h"
#include "test/gda/rma_moves.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

RmaMember rma_crossed_join(Rank& r) { return rma_join(r, {.contexts = 2}, r.rank % 2); }

std::string crossed(Rank& r) {
  RmaMember member = rma_crossed_join(r);
  EXPECT_GIN(member.context);
  const std::string wrong = play_rma(r, member);
  mend(r);
  return wrong;
}

const NamedScenario rma_crossed_apart("rma_crossed_apart", [](Rank& r) {
  fault = {"down", true, {}, 2000, 11};
  EXPECT_GIN(r.use(open_devices(two_ports(merged_config()))));
  RmaMember member = rma_crossed_join(r);
  EXPECT_GIN(member.context);
  return play_rma(r, member);
});

// Over both contexts in turn.
std::string outlasts(Rank& r) {
  RmaMember member = rma_crossed_join(r);
  EXPECT_GIN(member.context);
  RmaContext& context = *member.context;
  RmaMemory memory(*member.comm, 64);
  EXPECT_GIN(memory);
  const RmaSignal signal{memory.at(0), 1};
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  const std::int64_t begin = now_ns();
  for (std::uint64_t n = 1; n <= 120; ++n) {
    auto put = context.put(static_cast<int>(n % 2), 1 - r.rank, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_GIN(rma_await(context, memory, 0, n));
    for (const auto due = begin + static_cast<std::int64_t>(n) * 10 * kMillisecond; now_ns() < due;)
      EXPECT_RMA_OK(context.progress());
  }
  EXPECT_GIN(!context.failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// See crossed_test.cc.
std::string no_window(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.use(open_devices(two_ports(merged_config()), refuse_on_soft1)));
  if (r.rank == 0) no_queues = true;
  RmaMember member = rma_crossed_join(r);
  if (r.rank == 0) no_queues = false;
  EXPECT_GIN(member.context);
  if (std::string wrong = refuses_windows<RmaMemory>(r, *member.comm); !wrong.empty()) return wrong;
  RmaMemory memory(*member.comm, 64);
  EXPECT_GIN(memory);
  const RmaSignal signal{memory.at(0), 1};
  for (std::uint64_t n = 1; n <= 50; ++n) {
    auto put = member.context->put(static_cast<int>(n % 2), 1 - r.rank, {}, &signal);
    EXPECT_GIN(put);
    EXPECT_RMA_OK(rma_wait(*put));
    EXPECT_GIN(rma_await(*member.context, memory, 0, n));
  }
  r.meeting->barrier();
  return {};
}

}  // namespace

TEST_CASE("F1: RMA of ranks whose first ports are each other's second goes on", "[once]") {
  if (on_adapters()) return;
  lose_each_port(2, crossed);
  lose_each_port(3, crossed);
}

// Both contexts' queues to oneself are over its first port, and to the other one each over one.
TEST_CASE("F4: RMA of ranks whose first ports are each other's second goes back", "[once]") {
  if (on_adapters()) return;
  lose_each_port_often(2, crossed, {{1, 4}, {3, 4}});
}

TEST_CASE("F1: RMA of processes whose first ports are each other's second goes on", "[once]") {
  if (on_adapters()) return;
  CHECK(run_processes(2, "rma_crossed_apart") == "");
}

TEST_CASE("RMA of ranks with each other's second port outlasts either", "[once]") {
  if (on_adapters()) return;
  outlast_each_port(outlasts);
}

TEST_CASE("RMA of ranks with each other's second port needs room on both", "[once]") {
  if (on_adapters()) return;
  CHECK(run_threads(2, no_window, two_ports(merged_config())) == "");
}
