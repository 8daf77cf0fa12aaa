// From created queue pairs to a connection: moves that fail at first, what both adapters do beyond
// the standard, partitions, flow labels, and ports that say they are InfiniBand.
#include <algorithm>
#include <mutex>
#include <set>

#include "plugin/rdma/flow_label.h"
#include "test/fabric/failover.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

// A message goes through.
void carries_data(Link& link) {
  Buffer from(*link.send, 70'000, 5), to(*link.recv, 70'000);
  to.clear();
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  finish(start_send(*link.send, from, 70'000, 0, receive));
  CHECK(finish(receive).bytes[0] == 70'000);
  CHECK(to.holds(5, 70'000));
}

// Both ends until each has come to an end.
struct Rising {
  Status send = Status::again, recv = Status::again;
  int calls = 0;  // of connect
  Link link;
};
Rising try_connect(World& world) {
  Rising out;
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  REQUIRE(eventually(
      [&] {
        // Some at once: on a busy machine this thread is long in coming back from a yield.
        for (int i = 0; i < 8 && out.send == Status::again; ++i) {
          out.send = world.a->connect(0, handle, out.link.send);
          ++out.calls;
        }
        if (out.recv == Status::again) out.recv = listener->accept(out.link.recv);
        return out.send != Status::again && out.recv != Status::again;
      },
      20'000));
  return out;
}

Config patient(int tries, int pause_ms) {
  Config config = soft_config();
  config.ib_mqp_retry_cnt = tries;
  config.ib_mqp_retry_sleep_ms = pause_ms;
  return config;
}

// What the adapters are asked and told beyond the standard, on top of the tap.
struct Extras {
  static inline std::mutex mutex;  // where queues are made anew behind the test's back
  static inline std::vector<std::uint32_t> told;     // options, in order, both ends
  static inline std::vector<std::uint32_t> settled;  // what the adapters say after RTS
  static inline std::vector<int> answers;            // of the next calls, 0: the adapter's own

  static void on(Fabric& fabric) {
    Tap::on(fabric);
    told.clear();
    settled.clear();
    answers.clear();
    below_ = fabric.verbs;
    fabric.verbs.set_ece = [](ibv_qp* qp, ibv_ece* ece) {
      const std::lock_guard hold(mutex);
      told.push_back(ece->options);
      const int answer = answers.empty() ? 0 : answers.front();
      if (!answers.empty()) answers.erase(answers.begin());
      return answer != 0 ? answer : below_.set_ece(qp, ece);
    };
    fabric.verbs.modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
      const int result = below_.modify_qp(qp, attr, mask);
      ibv_ece ece{};
      const std::lock_guard hold(mutex);
      if (result == 0 && (mask & IBV_QP_SQ_PSN) != 0 && below_.query_ece(qp, &ece) == 0)
        settled.push_back(ece.options);
      return result;
    };
  }
  static void on_without_symbols(Fabric& fabric) {
    on(fabric);
    fabric.verbs.query_ece = nullptr;
    fabric.verbs.set_ece = nullptr;
  }

 private:
  static inline Verbs below_;
};

}  // namespace

TEST_CASE("a move that times out is made later, and the connection is as any other") {
  const auto state = GENERATE(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS);
  const int error = GENERATE(ETIMEDOUT, -ETIMEDOUT);
  CAPTURE(state, error);
  LogCapture log;
  World world(patient(34, 1), -1, Tap::on);
  Tap::move_error = error;
  Tap::failing_moves[state] = 5;
  Rising out = try_connect(world);
  REQUIRE(out.send == Status::ok);
  REQUIRE(out.recv == Status::ok);
  carries_data(out.link);
  CHECK(Tap::failing_moves[state] == 0);
  CHECK(log.warnings().empty());
  CHECK(log.has(LogLevel::info, "Connection timed out (errno 110); trying again"));
}

TEST_CASE("a move that always times out is given up after its tries, with what to do") {
  LogCapture log;
  World world(patient(3, 1), -1, Tap::on);
  Tap::failing_moves[IBV_QPS_RTR] = -1;
  const Rising out = try_connect(world);
  CHECK(out.send != Status::ok);
  CHECK(out.recv != Status::ok);
  CHECK(
      log.has(LogLevel::warn, "queue pair to RTR gives Connection timed out (errno 110), 4 times"));
  CHECK(log.has(LogLevel::warn, "NCCL_IB_GID_INDEX"));
  CHECK(Tap::raised.empty());
  CHECK(Tap::moves == 2 + 4);  // both to INIT, the acceptor's four tries
}

TEST_CASE("the time for a connection bounds all tries, and nobody sleeps meanwhile") {
  LogCapture log;
  Config config = patient(1000, 40);
  config.connect_timeout_ms = 400;
  World world(config, -1, Tap::on);
  Tap::failing_moves[IBV_QPS_RTR] = -1;
  const Rising out = try_connect(world);
  CHECK(out.send != Status::ok);
  CHECK(out.recv != Status::ok);
  CHECK(log.has(LogLevel::warn, "Connection timed out"));
  // 40, 120, 240 and 400 ms after the first.
  CHECK(Tap::moves <= 2 + 5);
  CHECK(out.calls > 100);
}

TEST_CASE("another error is final at once, unless all are to be tried again") {
  const bool all = GENERATE(false, true);
  LogCapture log;
  Config config = patient(34, 1);
  config.ib_mqp_retry_all = all;
  World world(config, -1, Tap::on);
  Tap::failing_moves[IBV_QPS_RTS] = 3;
  Tap::move_error = EIO;
  Rising out = try_connect(world);
  CHECK((out.send == Status::ok) == all);
  CHECK((out.recv == Status::ok) == all);
  CHECK(log.has(LogLevel::warn, "queue pair to RTS gives Input/output error") != all);
  if (all) carries_data(out.link);
  CHECK(Tap::failing_moves[IBV_QPS_RTS] == (all ? 0 : 2));
}

TEST_CASE("a move that a sandbox's profile refuses is told as such") {
  const auto state = GENERATE(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS);
  const int error = GENERATE(EPERM, EACCES, ENOSYS);
  CAPTURE(state, error);
  LogCapture log;
  World world(patient(3, 1), -1, Tap::on);
  Tap::move_error = error;
  Tap::failing_moves[state] = -1;
  CHECK(try_connect(world).send != Status::ok);
  CHECK(log.has(LogLevel::warn, "(seccomp)"));
  CHECK_FALSE(log.has("dmesg"));
}

// Alone in its process: the soft HCA takes its faults when it is first opened.
TEST_CASE("moves that the adapter itself refuses for a while are made later", "[.late]") {
  LogCapture log;
  Config config = patient(34, 1);
  config.soft_faults = "fail_init=2,fail_rtr=3,fail_rts=2";
  config.ib_qps_per_connection = 4;
  World world(config);
  Link link = world.connect();
  carries_data(link);
  CHECK(log.warnings().empty());
  CHECK(log.has(LogLevel::info, "queue pair to INIT gives Connection timed out"));
  CHECK(log.has(LogLevel::info, "queue pair to RTR gives Connection timed out"));
}

TEST_CASE("two adapters agree on what both offer beyond the standard, on every queue") {
  LogCapture log;
  Config config = soft_config("soft0,ece=7,soft1,ece=13");
  config.ib_qps_per_connection = 3;
  World world(config, -1, Extras::on);
  Link link = world.connect();
  carries_data(link);
  // The acceptor is told of the offer, the connector of what came of it.
  CHECK(Extras::told == std::vector<std::uint32_t>{7, 7, 7, 5, 5, 5});
  CHECK(Extras::settled == std::vector<std::uint32_t>(6, 5));
  CHECK(log.warnings().empty());
}

TEST_CASE("queues that replace others have what those had beyond the standard") {
  const int answer = GENERATE(0, EINVAL);
  CAPTURE(answer);
  LogCapture log;
  Config config = soft_config("soft0,ece=7,soft1,ece=7,soft2,ece=13,soft3,ece=13");
  config.soft_copy_threads = 0;
  World world(config, -1, Extras::on);
  const int from = world.merge({0, 1}), to = world.merge({2, 3});
  Link link = world.connect(from, to);
  Stream stream(link, {}, 23);
  CHECK(stream.run(50));
  {
    const std::lock_guard hold(Extras::mutex);
    CHECK(Extras::settled == std::vector<std::uint32_t>(4, 5));
    Extras::told.clear();
    Extras::settled.clear();
    Extras::answers = {answer};  // of the first that is made anew
  }
  FailoverWorld::port("soft1", false);
  CHECK(stream.run(400));
  FailoverWorld::port("soft1", true);
  CHECK(stream.finish());
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
  const std::lock_guard hold(Extras::mutex);
  CHECK(Extras::settled.size() >= 2);
  CHECK(!Extras::told.empty());
  for (const std::uint32_t options : Extras::told) CHECK(options == 5);
  // Instead of one that its adapter refuses a queue in reserve is used, which nobody is told of.
  if (answer != 0) return;
  for (const std::uint32_t options : Extras::settled) CHECK(options == 5);
}

TEST_CASE("without extras at one end, by adapter, setting or library, there are none") {
  struct Row {
    const char* hcas;
    bool enabled, symbols;
    std::size_t told;
  };
  const Row rows[] = {{"soft0,soft1", true, true, 0},
                      {"soft0,soft1,ece=3", true, true, 0},
                      {"soft0,ece=3,soft1", true, true, 1},  // the acceptor's refuses
                      {"soft0,ece=3,soft1,ece=3", false, true, 0},
                      {"soft0,ece=3,soft1,ece=3", true, false, 0}};
  for (const Row& row : rows) {
    CAPTURE(row.hcas, row.enabled, row.symbols);
    LogCapture log;
    Config config = soft_config(row.hcas);
    config.ib_ece_enable = row.enabled;
    World world(config, -1, row.symbols ? Extras::on : Extras::on_without_symbols);
    Link link = world.connect();
    carries_data(link);
    CHECK(Extras::told.size() == row.told);
    CHECK(log.warnings().empty());
  }
}

TEST_CASE("an acceptor's adapter that refuses the offer connects without it") {
  LogCapture log;
  World world(soft_config("soft0,ece=3,soft1,ece=3"), -1, Extras::on);
  Extras::answers = {EINVAL};  // another vendor's, say
  Link link = world.connect();
  carries_data(link);
  CHECK(Extras::told.size() == 1);
  CHECK(log.warnings().empty());
}

TEST_CASE("a connector's adapter that cannot be told is left alone, one that refuses is not") {
  const int answer = GENERATE(EOPNOTSUPP, -EOPNOTSUPP, EINVAL);
  CAPTURE(answer);
  LogCapture log;
  World world(soft_config("soft0,ece=3,soft1,ece=3"), -1, Extras::on);
  Extras::answers = {0, answer};
  Rising out = try_connect(world);
  CHECK(Extras::told == std::vector<std::uint32_t>{3, 3});
  if (answer == EINVAL) {
    CHECK(out.send == Status::system);
    CHECK(out.recv == Status::remote);
    CHECK(log.has(LogLevel::warn, "NCCL_IB_ECE_ENABLE=0"));
    CHECK(log.has(LogLevel::warn, "soft0 cannot use"));
  } else {
    REQUIRE(out.send == Status::ok);
    carries_data(out.link);
    CHECK(log.warnings().empty());
  }
}

TEST_CASE("each end takes the index that the partition has on its own port") {
  Config config = soft_config("soft0,pkeys=0xffff:0x8007,soft1,pkeys=0x8007:0xffff");
  config.ib_pkey_value = 0x7;
  World world(config, -1, Tap::on);
  Link link = world.connect();
  carries_data(link);
  REQUIRE(Tap::raised.size() == 2);
  CHECK(Tap::raised[0].attr.pkey_index == 0);  // the acceptor's, which is first
  CHECK(Tap::raised[1].attr.pkey_index == 1);
}

TEST_CASE("a partition that a port is not in makes no connection, and says what it has") {
  LogCapture log;
  Config config = soft_config("soft0,pkeys=0xffff:0x8007,soft1");
  config.ib_pkey_value = 0x8007;
  World world(config);
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  CHECK(world.b->listen(1, handle, listener) == Status::bad_argument);
  CHECK(log.has(
      LogLevel::warn,
      "soft1:1: NCCL_IB_PKEY_VALUE=0x8007 is not in its partition table; in use: 0: 0xffff"));
}

TEST_CASE("queue pairs on RoCE have flow labels of their own, the same at both ends") {
  Config config = soft_config();
  config.ib_qps_per_connection = 8;
  const bool on = GENERATE(true, false);
  config.flow_labels = on;
  World world(config, -1, Tap::on);
  Link link = world.connect();
  REQUIRE(Tap::raised.size() == 16);
  std::set<std::uint32_t> labels, ports;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint32_t label = Tap::raised[i].attr.ah_attr.grh.flow_label;
    CHECK(label == Tap::raised[8 + i].attr.ah_attr.grh.flow_label);
    labels.insert(label);
    ports.insert(udp_source_port(label));
  }
  if (on) {
    CHECK(labels.size() == 8);
    CHECK(ports.size() == 8);
    CHECK(labels.count(0) == 0);
  } else {
    CHECK(labels == std::set<std::uint32_t>{0});
  }
}

TEST_CASE("InfiniBand ports that ask for a global header get one beside their LID") {
  LogCapture log;
  World world(soft_config("soft0,link=ib,soft1,link=ib"), -1, Tap::on);
  Link link = world.connect();
  carries_data(link);
  REQUIRE(Tap::raised.size() == 2);
  for (const Tap::Raised& r : Tap::raised) {
    CHECK(r.attr.ah_attr.is_global == 1);
    CHECK(r.attr.ah_attr.dlid != 0);
    CHECK(r.attr.ah_attr.grh.flow_label == 0);
  }
  CHECK(Tap::raised[0].attr.ah_attr.dlid != Tap::raised[1].attr.ah_attr.dlid);
  CHECK(log.warnings().empty());
}

}  // namespace twinpath::test
