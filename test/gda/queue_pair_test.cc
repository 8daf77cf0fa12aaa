// Queue pairs that carry what kernels ask for: moves that the adapter does not make at once.
#include "gda/connect/queue_pair.h"

#include <cerrno>

#include "gda/team/port_watch.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/rdma/path.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath::gda {
namespace {

// One soft adapter whose next moves to a state end in an error.
struct Moves {
  static inline ibv_qp_state state = IBV_QPS_RESET;
  static inline int failing = 0, error = ETIMEDOUT, tried = 0;
  static inline Verbs below;

  static int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    if (attr->qp_state == state) {
      ++tried;
      if (failing > 0) return --failing, error;
    }
    return below.modify_qp(qp, attr, mask);
  }

  Config config;
  std::unique_ptr<Devices> devices;
  std::vector<Rail> rails;
  Owned<ibv_cq> cq;

  Moves(ibv_qp_state to, int times, int with) {
    config.fabric = FabricChoice::soft;
    config.soft_cuda = SoftCuda::off;
    config.ib_mqp_retry_cnt = 3;
    config.ib_mqp_retry_sleep_ms = 1;
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    below = (*fabric)->verbs;
    (*fabric)->verbs.modify_qp = modify_qp;
    devices = std::make_unique<Devices>(std::move(fabric).take(), config);
    auto chosen = choose_rails(*devices, 0);
    REQUIRE(chosen);
    rails = std::move(chosen).take();
    cq = own(below.create_cq(rails[0].port.adapter->context, 64, nullptr, nullptr, 0),
             below.destroy_cq);
    state = to;
    failing = times;
    error = with;
    tried = 0;
  }

  // A queue pair that is joined to itself.
  Status join() {
    const QueueSettings settings = path_settings(config, {});
    auto pair = QueuePair::make(devices->verbs(), rails[0], cq.get(), settings, AdapterLimits{});
    if (!pair) return pair.status();
    return (*pair)->raise((*pair)->end(), "this rank", true);
  }
};

}  // namespace

TEST_CASE("a kernel's queue pair is moved later where its adapter times out, and not for ever") {
  const auto to = GENERATE(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS);
  CAPTURE(to);
  test::LogCapture log;
  {
    Moves some(to, 3, ETIMEDOUT);
    CHECK(some.join() == Status::ok);
    CHECK(Moves::tried == 4);
    CHECK(log.warnings().empty());
  }
  {
    Moves all(to, 1000, ETIMEDOUT);
    CHECK(all.join() == Status::system);
    CHECK(Moves::tried == 4);
    CHECK(log.has(LogLevel::warn, "Connection timed out (errno 110)"));
  }
  Moves other(to, 1, EIO);
  CHECK(other.join() == Status::system);
  CHECK(Moves::tried == 1);
}

TEST_CASE("a port that is down is lost after its time, of which a stop of the process is no part") {
  test::LogCapture log;
  Moves made(IBV_QPS_RESET, 0, 0);
  const std::int64_t stop = GENERATE(std::int64_t{0}, 3600 * kSecond);
  const Rail& rail = made.rails[0];
  PortWatch watch(rail, *made.devices, nullptr);
  const std::int64_t hold = made.config.failover_hold_ms * kMillisecond;
  std::int64_t now = 5 * kSecond;
  CHECK(watch.look(now) == "");
  CHECK_FALSE(watch.told());
  REQUIRE(soft::set_port_state(rail.port.adapter->context, 1, false) == 0);
  CHECK(watch.told());
  CHECK(watch.look(now += 2 * kSecond) == "");
  CHECK(watch.down());
  CHECK_FALSE(watch.told());
  now += stop;
  std::int64_t waited = 0;  // in looks of 100 ms
  while (watch.look(now += 100 * kMillisecond).empty() && waited < 2 * hold)
    waited += 100 * kMillisecond;
  CHECK(waited >= hold - 2 * kSecond);
  CHECK(waited <= hold);
  REQUIRE(soft::set_port_state(rail.port.adapter->context, 1, true) == 0);
  CHECK(watch.look(now) == "");
}

TEST_CASE("what an adapter tells of its limits is kept, but for what no queue pair could have") {
  Moves made(IBV_QPS_RESET, 0, 0);
  static ibv_device_attr told;
  told = {};
  told.atomic_cap = IBV_ATOMIC_GLOB;
  told.max_qp_rd_atom = 5;
  told.max_qp_init_rd_atom = 7;
  told.max_qp_wr = 11;
  told.max_cqe = 13;
  Verbs verbs = made.devices->verbs();
  verbs.query_device = [](ibv_context*, ibv_device_attr* out) { return *out = told, 0; };
  auto limits = adapter_limits(verbs, made.rails[0]);
  REQUIRE(limits);
  CHECK(limits->atomics);
  CHECK(limits->atomics_global);
  CHECK(limits->reads_in == 5);
  CHECK(limits->reads_out == 7);
  CHECK(limits->max_work_requests == 11);
  CHECK(limits->max_cqes == 13);
  told = {};
  limits = adapter_limits(verbs, made.rails[0]);
  REQUIRE(limits);
  CHECK_FALSE(limits->atomics);
  CHECK(limits->max_work_requests == 1);
  CHECK(limits->max_cqes == 1);
}

}  // namespace twinpath::gda
