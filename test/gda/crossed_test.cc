// Ranks of a host with two ports, each first at one, as NCCL gives each of two GPUs its own: either
// port's loss takes one way between two of them, and they go on over the other.
#include "test/gda/crossed.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

std::string crossed(Rank& r) {
  Member member = crossed_join(r);
  return play_and_mend(r, member);
}

// Each rank a process: the port fails of one of them alone.
const NamedScenario crossed_apart("crossed_apart", [](Rank& r) {
  fault = {"down", true, {}, 2000, 11};
  EXPECT_GIN(r.use(open_devices(two_ports(merged_config()))));
  Member member = crossed_join(r);
  EXPECT_GIN(member.context);
  return play(r, member);
});

std::string outlasts(Rank& r) {
  Member member = crossed_join(r);
  EXPECT_GIN(member.context);
  r.meeting->barrier();
  if (r.rank == 0) set(*r.devices->rails(struck).front().port, false);
  std::string wrong;
  for (std::uint64_t n = 1; n <= 120 && wrong.empty(); ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    wrong = talk(member, n);
  }
  r.meeting->barrier();
  mend(r);
  return wrong;
}

// Rank 0's second port has no room for queue pairs when its context is made: its queues to rank 1
// are over the first port of each.
std::string no_second_queues(Rank& r) {
  if (r.rank == 0) {
    EXPECT_GIN(r.use(open_devices(two_ports(merged_config()), refuse_on_soft1)));
    no_queues = true;
  }
  Member member = crossed_join(r);
  if (r.rank == 0) no_queues = false;
  EXPECT_GIN(member.context);
  for (std::uint64_t n = 1; n <= 50; ++n)
    if (std::string wrong = talk(member, n); !wrong.empty()) return wrong;
  r.meeting->barrier();
  return {};
}

// It has none for windows later: none can be made, at any rank, and others can once there is.
std::string no_window(Rank& r) {
  if (r.rank == 0) EXPECT_GIN(r.use(open_devices(two_ports(merged_config()), refuse_on_soft1)));
  Member member = crossed_join(r);
  EXPECT_GIN(member.context);
  if (std::string wrong = refuses_windows<WindowMemory>(r, *member.comm); !wrong.empty())
    return wrong;
  WindowMemory window(*member.comm, 4096);
  EXPECT_GIN(window);
  std::string wrong = talk(member, 1);
  r.meeting->barrier();
  return wrong;
}

}  // namespace

TEST_CASE("F1: Kernels of ranks whose first ports are each other's second go on", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  lose_each_port(2, crossed);
  lose_each_port(3, crossed);
}

// Rank 1 alone is first at soft1; its way to rank 2 is over that, and to rank 0 over soft0.
TEST_CASE("F4: Kernels of ranks whose first ports are each other's second go back", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  lose_each_port_often(3, crossed, {{6, 6}, {3, 3}});
}

TEST_CASE("F1: Kernels of processes whose first ports are each other's second go on", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  CHECK(run_processes(2, "crossed_apart") == "");
}

TEST_CASE("Kernels of ranks with each other's second port outlast either", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  outlast_each_port(outlasts);
}

TEST_CASE("Queues between ranks with each other's second port need room on both", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  const LogCapture log;
  CHECK(run_threads(2, no_second_queues, two_ports(merged_config())) == "");
  CHECK(run_threads(2, no_window, two_ports(merged_config())) == "");
  CHECK(log.has(LogLevel::info, "GIN of rank 0: each queue to rank 1"));
  CHECK(log.has(LogLevel::info, "GIN of rank 1: each queue to rank 0"));
}
