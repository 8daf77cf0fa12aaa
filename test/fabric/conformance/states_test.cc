// The states of an RC queue pair: which transitions exist (IB vol. 1, 10.3.1).
#include <algorithm>
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

// An endpoint whose QP has been taken to a state, with itself as its peer.
struct At : Endpoint {
  explicit At(ibv_qp_state state) {
    const int steps = state == IBV_QPS_INIT ? 1 : state == IBV_QPS_RTR ? 2 : 3;
    if (state == IBV_QPS_RESET) return;
    REQUIRE(init(qp.get()) == 0);
    if (steps >= 2) REQUIRE(rtr(qp.get(), qp->qp_num, *this) == 0);
    if (steps >= 3) REQUIRE(rts(qp.get()) == 0);
    if (state == IBV_QPS_ERR) REQUIRE(to_state(qp.get(), IBV_QPS_ERR) == 0);
    REQUIRE(state_of(qp.get()) == state);
  }
  int go(ibv_qp_state state) {
    switch (state) {
      case IBV_QPS_INIT:
        return init(qp.get());
      case IBV_QPS_RTR:
        return rtr(qp.get(), qp->qp_num, *this);
      case IBV_QPS_RTS:
        return rts(qp.get());
      default:
        return to_state(qp.get(), state);
    }
  }
};

void allowed(ibv_qp_state from, ibv_qp_state to) {
  At e(from);
  CHECK(e.go(to) == 0);
  CHECK(state_of(e.qp.get()) == to);
  CHECK(e.qp->state == to);
}

// Refused, and the queue pair stays where it was.
void refused(ibv_qp_state from, ibv_qp_state to) {
  At e(from);
  CHECK(e.go(to) == EINVAL);
  CHECK(state_of(e.qp.get()) == from);
}

}  // namespace

TEST_CASE("a new queue pair is in RESET", "[states]") {
  Endpoint e;
  CHECK(e.qp->state == IBV_QPS_RESET);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RESET);
}
TEST_CASE("RESET to INIT", "[states]") { allowed(IBV_QPS_RESET, IBV_QPS_INIT); }
TEST_CASE("INIT to INIT changes the access rights", "[states]") {
  At e(IBV_QPS_INIT);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  REQUIRE(modify(e.qp.get(), a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) == 0);
  ibv_qp_attr got{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(e.qp.get(), &got, IBV_QP_ACCESS_FLAGS, &init) == 0);
  CHECK((got.qp_access_flags & kRemoteRights) ==
        (deviates("read-right-needs-depth") ? 0 : IBV_ACCESS_REMOTE_READ));
}
TEST_CASE("INIT to RTR", "[states]") { allowed(IBV_QPS_INIT, IBV_QPS_RTR); }
TEST_CASE("RTR to RTS", "[states]") { allowed(IBV_QPS_RTR, IBV_QPS_RTS); }
TEST_CASE("RTS to RTS", "[states]") {
  At e(IBV_QPS_RTS);
  CHECK(to_state(e.qp.get(), IBV_QPS_RTS) == 0);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RTS);
}
TEST_CASE("INIT to ERR", "[states]") { allowed(IBV_QPS_INIT, IBV_QPS_ERR); }
TEST_CASE("RTR to ERR", "[states]") { allowed(IBV_QPS_RTR, IBV_QPS_ERR); }
TEST_CASE("RTS to ERR", "[states]") { allowed(IBV_QPS_RTS, IBV_QPS_ERR); }
TEST_CASE("ERR to ERR", "[states]") { allowed(IBV_QPS_ERR, IBV_QPS_ERR); }
TEST_CASE("RESET to RESET", "[states]") { allowed(IBV_QPS_RESET, IBV_QPS_RESET); }
TEST_CASE("INIT to RESET", "[states]") { allowed(IBV_QPS_INIT, IBV_QPS_RESET); }
TEST_CASE("RTR to RESET", "[states]") { allowed(IBV_QPS_RTR, IBV_QPS_RESET); }
TEST_CASE("RTS to RESET", "[states]") { allowed(IBV_QPS_RTS, IBV_QPS_RESET); }
TEST_CASE("ERR to RESET", "[states]") { allowed(IBV_QPS_ERR, IBV_QPS_RESET); }

TEST_CASE("RESET to RTR is refused", "[states]") { refused(IBV_QPS_RESET, IBV_QPS_RTR); }
TEST_CASE("RESET to RTS is refused", "[states]") { refused(IBV_QPS_RESET, IBV_QPS_RTS); }
TEST_CASE("RESET to ERR is refused", "[states]") { refused(IBV_QPS_RESET, IBV_QPS_ERR); }
TEST_CASE("INIT to RTS is refused", "[states]") { refused(IBV_QPS_INIT, IBV_QPS_RTS); }
TEST_CASE("RTR to INIT is refused", "[states]") { refused(IBV_QPS_RTR, IBV_QPS_INIT); }
TEST_CASE("RTS to INIT is refused", "[states]") { refused(IBV_QPS_RTS, IBV_QPS_INIT); }
TEST_CASE("RTS to RTR is refused", "[states]") { refused(IBV_QPS_RTS, IBV_QPS_RTR); }
TEST_CASE("ERR to INIT is refused", "[states]") { refused(IBV_QPS_ERR, IBV_QPS_INIT); }
TEST_CASE("ERR to RTR is refused", "[states]") { refused(IBV_QPS_ERR, IBV_QPS_RTR); }
TEST_CASE("ERR to RTS is refused", "[states]") { refused(IBV_QPS_ERR, IBV_QPS_RTS); }

TEST_CASE("a wrong current state in the call is refused", "[states]") {
  At e(IBV_QPS_RTR);
  ibv_qp_attr a = rts_attributes(e.options);
  a.cur_qp_state = IBV_QPS_INIT;
  CHECK(modify(e.qp.get(), a, kRtsMask | IBV_QP_CUR_STATE) == EINVAL);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RTR);
}

TEST_CASE("RTS to SQD and back", "[states]") {
  At e(IBV_QPS_RTS);
  if (without_sqd(e.qp.get())) return;
  CHECK(to_state(e.qp.get(), IBV_QPS_SQD) == 0);
  CHECK(state_of(e.qp.get()) == IBV_QPS_SQD);
  ibv_qp_attr a{};
  a.timeout = 10;
  CHECK(modify(e.qp.get(), a, IBV_QP_TIMEOUT) == 0);  // what RTS does not take
  CHECK(state_of(e.qp.get()) == IBV_QPS_SQD);
  CHECK(to_state(e.qp.get(), IBV_QPS_RTS) == 0);
  CHECK(state_of(e.qp.get()) == IBV_QPS_RTS);
}

TEST_CASE("work posted in SQD begins when the queue pair is back in RTS", "[states]") {
  Pair p;
  if (without_sqd(p.a.qp.get())) return;
  REQUIRE(to_state(p.a.qp.get(), IBV_QPS_SQD) == 0);
  Wr w = p.write(8);
  REQUIRE(p.post(w) == 0);
  CHECK(quiet(p.a.cq.get()));
  REQUIRE(to_state(p.a.qp.get(), IBV_QPS_RTS) == 0);
  if (deviates("sqd-needs-a-post")) {
    CHECK(quiet(p.a.cq.get()));
    REQUIRE(p.post(w) == 0);
  }
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
}

TEST_CASE("a drained send queue raises an event when it was asked for", "[states]") {
  Pair p;
  if (without_sqd(p.a.qp.get())) return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  REQUIRE(modify(p.a.qp.get(), a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
  const auto event = wait_event(p.a.context.get(), IBV_EVENT_SQ_DRAINED);
  REQUIRE(event);
  CHECK(event->element.qp == p.a.qp.get());
}

TEST_CASE("a queue pair in SQD still answers its peer", "[states]") {
  Pair p;
  if (without_sqd(p.b.qp.get())) return;
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_SQD) == 0);
  p.a.fill(0, 64);
  CHECK(p.run(p.write(64)).status == IBV_WC_SUCCESS);
  CHECK(p.same(64));
}

TEST_CASE("a queue pair in RTR answers its peer", "[states]") {
  Endpoint a(0), b(1);
  connect_asker(a, a.qp.get(), b, b.qp.get());
  REQUIRE(b.receive(0, 64) == 0);
  Wr w;
  w.sge = a.sge(0, 8);
  w.wr.num_sge = 1;
  w.wr.opcode = IBV_WR_SEND;
  w.wr.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(post(a.qp.get(), w) == 0);
  CHECK(wait(a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(b.cq.get()).byte_len == 8);
  CHECK(state_of(b.qp.get()) == IBV_QPS_RTR);
}

TEST_CASE("a queue pair can be reused after ERR and RESET", "[states]") {
  Pair p;
  for (int round = 0; round < 3; ++round) {
    for (ibv_qp* qp : {p.a.qp.get(), p.b.qp.get()}) {
      REQUIRE(to_state(qp, IBV_QPS_ERR) == 0);
      REQUIRE(to_state(qp, IBV_QPS_RESET) == 0);
    }
    connect(p.a, p.a.qp.get(), p.b, p.b.qp.get());
    p.a.fill(0, 5000, static_cast<unsigned>(round));
    CHECK(p.run(p.write(5000)).status == IBV_WC_SUCCESS);
    CHECK(p.same(5000));
  }
}

TEST_CASE("RESET throws posted receives away without completions", "[states]") {
  At e(IBV_QPS_RTS);
  REQUIRE(e.receive(0, 64, 1) == 0);
  REQUIRE(to_state(e.qp.get(), IBV_QPS_RESET) == 0);
  CHECK(quiet(e.cq.get()));
  for (const ibv_qp_state next : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) REQUIRE(e.go(next) == 0);
  REQUIRE(e.receive(0, 64, 2) == 0);
  Wr w;
  w.wr.opcode = IBV_WR_SEND;
  REQUIRE(post(e.qp.get(), w) == 0);
  CHECK(wait(e.cq.get()).wr_id == 2);
}

TEST_CASE("a queue pair connected to itself is a loopback", "[states]") {
  At e(IBV_QPS_RTS);
  e.fill(0, 3000);
  Wr w;
  w.sge = e.sge(0, 3000);
  w.wr.num_sge = 1;
  w.wr.opcode = IBV_WR_RDMA_WRITE;
  w.wr.send_flags = IBV_SEND_SIGNALED;
  w.wr.wr.rdma = {e.address(8192), e.mr->rkey};
  REQUIRE(post(e.qp.get(), w) == 0);
  CHECK(wait(e.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(std::equal(e.buffer.begin(), e.buffer.begin() + 3000, e.buffer.begin() + 8192));
}
