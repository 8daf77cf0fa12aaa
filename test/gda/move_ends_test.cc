// When a team's queues leave a port that fails, and what becomes of kernels where no other port may
// serve.
#include <cerrno>
#include <set>
#include <string>

#include "gda/team/engine.h"
#include "test/gda/moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

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

std::string notices(Rank& r) {
  Member member = join_first(r);
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

bool busy = false;
LogCapture* captured = nullptr;

// Both ports are down; the second one comes back first.
std::string waits_for_second(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  r.meeting->barrier();
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  if (r.rank == 0) {
    (void)soft::set_port_state(second.context, second.number, false);
    (void)soft::set_port_state(first.context, first.number, false);
  }
  r.meeting->barrier();
  if (busy) TRY_GIN(kernel.signal(1 - r.rank, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(second.context, second.number, true);
  if (busy) TRY_GIN(kernel.wait_signal(0, 1));
  while (!captured->has("leaves soft0 for soft1") && !member.context->failed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  TRY_GIN(kernel.signal(1 - r.rank, 1));
  TRY_GIN(kernel.wait_signal(1, 1));
  r.meeting->barrier();
  mend(r);
  return {};
}

// All four queues of two ranks have told of that, or the team is at its end.
bool all_tell(const char* what, const GinContext& context) {
  const std::int64_t end = now_ns() + 60 * kSecond;
  std::set<std::string> told;
  while (told.size() < 4 && !context.failed() && now_ns() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const LogLine& line : captured->lines())
      if (const auto at = line.text.find(what); at != std::string::npos)
        told.insert(line.text.substr(0, at));
  }
  return told.size() == 4;
}

bool renewed = true;

// The second port does not answer while the first one is down for a while.
std::string reserve_again(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  const Port& first = *r.devices->rails(0).front().port;
  const Port& second = *r.devices->rails(1).front().port;
  r.meeting->barrier();
  if (r.rank == 0) {
    (void)soft::set_port_loss(second.context, second.number, soft::PortLoss::all);
    (void)soft::set_port_state(first.context, first.number, false);
  }
  EXPECT_GIN(all_tell(": soft1 does not reach it", *member.context));
  r.meeting->barrier();
  if (r.rank == 0) {
    (void)soft::set_port_loss(second.context, second.number, soft::PortLoss::none);
    (void)soft::set_port_state(first.context, first.number, true);
  }
  if (!renewed) {  // before the pause is over, and many looks at ports
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_GIN(!captured->has("can move to soft1 again") && !member.context->failed());
    r.meeting->barrier();
    mend(r);
    return {};
  }
  EXPECT_GIN(all_tell(" can move to soft1 again", *member.context));
  r.meeting->barrier();
  if (r.rank == 0) (void)soft::set_port_state(first.context, first.number, false);
  EXPECT_GIN(all_tell(" goes on over soft1", *member.context));
  TRY_GIN(kernel.signal(1 - r.rank, 0));
  TRY_GIN(kernel.wait_signal(0, 1));
  EXPECT_GIN(!member.context->failed());
  r.meeting->barrier();
  mend(r);
  return {};
}

// Each rank's device is a port of its own.
std::string crosswise(Rank& r) {
  Member member = join(r, settings30(), r.rank);
  return play_and_mend(r, member);
}

int ports_down = 2;

// No port is left that may serve: kernels are let go at all ranks.
std::string let_go(Rank& r) {
  Member member = join_first(r);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  TRY_GIN(kernel.signal(1 - r.rank, 0));
  TRY_GIN(kernel.wait_signal(0, 1));
  r.meeting->barrier();
  if (r.rank == 0)
    for (int device = 0; device < ports_down; ++device) {
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

ibv_qp* (*real_create_qp)(ibv_pd*, ibv_qp_init_attr*) = nullptr;

// At one rank the second port has no room for queue pairs: the first serves until it fails.
std::string no_room(Rank& r) {
  if (r.rank == 1) {
    auto fabric = open_fabric(merged_config());
    EXPECT_GIN(fabric);
    (*fabric)->verbs.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attr) -> ibv_qp* {
      if (std::string(pd->context->device->name) == "soft0") return real_create_qp(pd, attr);
      errno = ENOMEM;
      return nullptr;
    };
    EXPECT_GIN(r.use(std::make_shared<Devices>(std::move(fabric).take(), merged_config())));
  }
  return let_go(r);
}

int (*real_modify_qp)(ibv_qp*, ibv_qp_attr*, int) = nullptr;

void stays_in_service(Fabric& fabric) {
  real_modify_qp = fabric.verbs.modify_qp;
  fabric.verbs.modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    const int done = real_modify_qp(qp, attr, mask);
    return attr->qp_state == IBV_QPS_ERR ? EIO : done;
  };
}

}  // namespace

TEST_CASE("F6: With both ports down queues wait, and go on over the second when that is back",
          "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  LogCapture log;
  captured = &log;
  SECTION("nothing is under way") {
    busy = false;
    CHECK(run_threads(2, waits_for_second, config) == "");
  }
  SECTION("signals are") {
    busy = true;
    config.ib_timeout = 20;  // else they end meanwhile
    CHECK(run_threads(2, waits_for_second, config) == "");
  }
  CHECK(log.has("leaves soft0 for soft1: it is down"));
}

TEST_CASE("F6: A way that did not answer is made anew while the first port serves", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  config.failover_pace.settle_ms = 10;
  config.failover_pace.first_pause_ms = 20;
  LogCapture log;
  captured = &log;
  SECTION("of a merged device") { CHECK(run_threads(2, reserve_again, config) == ""); }
  SECTION("in reserve") {
    alone = true;
    CHECK(run_threads(2, reserve_again, config) == "");
  }
  SECTION("after a pause") {
    renewed = false;
    config.failover_pace.first_pause_ms = config.failover_pace.longest_pause_ms = 3600 * 1000;
    CHECK(run_threads(2, reserve_again, config) == "");
  }
  alone = false;
  renewed = true;
}

// As NCCL gives each of two GPUs that are near to both ports its own.
TEST_CASE("Ranks whose first ports are each other's nearest go on over a third one", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  fault = {"down", true, {}, 3000, 1};
  const UntilStruck waits;
  LogCapture log;
  CHECK(run_threads(2, crosswise, merged_config()) == "");
  CHECK(log.has("of rank 0 moves from soft0 to soft2 if that port fails"));
  CHECK(log.has("of rank 1 moves from soft1 to soft2 if that port fails"));
  CHECK(log.has("leaves soft0 for soft2: it is down"));
}

TEST_CASE("Kernels are let go when no port is left that may serve", "[once]") {
  if (on_adapters() || on_adapter_queues()) return;
  Config config = merged_config();
  config.failover_hold_ms = 500;
  LogCapture log;
  SECTION("both have failed") {
    ports_down = 2;
    CHECK(run_threads(2, let_go, config) == "");
  }
  SECTION("none is in reserve") {
    alone = true;
    ports_down = 1;
    config.standby_ports = 0;
    CHECK(run_threads(2, let_go, config) == "");
  }
  SECTION("none may be used") {
    ports_down = 1;
    config.failover = false;
    CHECK(run_threads(2, let_go, config) == "");
  }
  SECTION("one rank has no room on it") {
    alone = true;
    ports_down = 1;
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    real_create_qp = (*fabric)->verbs.create_qp;
    CHECK(run_threads(2, no_room, config) == "");
    CHECK(log.has("a rank has no queues on soft1"));
  }
  SECTION("an adapter does not take a queue pair out of service") {
    ports_down = 1;
    CHECK(run_threads(2, let_go, config, stays_in_service) == "");
    CHECK(log.has(LogLevel::warn, "soft0 does not take its queue pair out of service"));
    CHECK(!log.has("goes on over soft1"));
  }
  alone = false;
}

// Nothing here has a time limit: the engine's next look is what the adapter's word must precede.
TEST_CASE("Queues leave a port that is down before the engine looks around", "[once]") {
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
