// Asynchronous events of queue pairs (IB vol. 1, 11.6.3).
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

// The event of that type for the endpoint's queue pair; none at all where `deviation` holds.
void expect(const Endpoint& e, ibv_event_type type, const char* deviation) {
  if (deviates(deviation)) {
    CHECK_FALSE(next_event(e.context.get(), kQuiet));
    return;
  }
  const auto event = wait_event(e.context.get(), type);
  REQUIRE(event);
  CHECK(event->element.qp == e.qp.get());
}

}  // namespace

TEST_CASE("a refused access raises an access event at the responder", "[event]") {
  Pair p;
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey ^= 0x55;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
  expect(p.b, IBV_EVENT_QP_ACCESS_ERR, "no-error-events");
}

TEST_CASE("a refused access raises no event at the requester", "[event]") {
  Pair p;
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey ^= 0x55;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
  CHECK_FALSE(next_event(p.a.context.get(), kQuiet));
}

TEST_CASE("an invalid request raises a request event at the responder", "[event]") {
  Options no_reads;
  no_reads.qp_access = IBV_ACCESS_REMOTE_WRITE;
  Pair p({}, no_reads);
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 8)).status == IBV_WC_REM_INV_REQ_ERR);
  expect(p.b, IBV_EVENT_QP_REQ_ERR, "no-error-events");
}

TEST_CASE("a queue pair with an SRQ that enters ERR says when its last receive is done",
          "[event]") {
  Options shared;
  shared.srq = true;
  Pair p({}, shared);
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  expect(p.b, IBV_EVENT_QP_LAST_WQE_REACHED, "no-last-wqe-event");
}

TEST_CASE("data that arrive in RTR raise one communication-established event", "[event]") {
  Endpoint a(0), b(1);
  connect_asker(a, a.qp.get(), b, b.qp.get());
  for (int i = 0; i < 2; ++i) {
    REQUIRE(b.receive(0, 0) == 0);
    Wr w;
    w.wr.opcode = IBV_WR_SEND;
    w.wr.send_flags = IBV_SEND_SIGNALED;
    REQUIRE(post(a.qp.get(), w) == 0);
    REQUIRE(wait(a.cq.get()).status == IBV_WC_SUCCESS);
  }
  expect(b, IBV_EVENT_COMM_EST, "no-established-event");
  CHECK_FALSE(next_event(b.context.get(), milliseconds(0)));
}

TEST_CASE("data that arrive in RTS raise no event", "[event]") {
  Pair p;
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK_FALSE(next_event(p.b.context.get(), kQuiet));
}

TEST_CASE("moving to ERR by hand raises no fatal event", "[event]") {
  Pair p;
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  const auto event = next_event(p.b.context.get(), kQuiet);
  CHECK_FALSE((event && event->event_type == IBV_EVENT_QP_FATAL));
}

TEST_CASE("an event concerns only the context that owns the queue pair", "[event]") {
  Pair p;
  if (without_sqd(p.b.qp.get())) return;
  const Context bystander = open_device(1);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  REQUIRE(modify(p.b.qp.get(), a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
  REQUIRE(wait_event(p.b.context.get(), IBV_EVENT_SQ_DRAINED));
  CHECK_FALSE(readable(bystander->async_fd, kQuiet));
}
