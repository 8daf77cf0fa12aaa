// Completions in error, at the requester and at the responder, and what they do to the queue pair
// (IB vol. 1, 9.9 and 10.10).
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

Options with_rnr_retry(std::uint8_t n) {
  Options o;
  o.rnr_retry = n;
  return o;
}
Options impatient() {  // 4.096 us << 12, twice: 34 ms
  Options o;
  o.timeout = 12;
  o.retry_cnt = 1;
  return o;
}
int refusal_in_error() { return fabric() == Fabric::erdma ? EIO : EINVAL; }
Wr bad_key(Pair& p) {
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey ^= 0x55;
  return w;
}
Wr bad_local_key(Pair& p) {
  Wr w = p.write(8);
  w.sge.lkey ^= 0x5500;
  return w;
}

}  // namespace

TEST_CASE("a remote access error puts the requester into ERR", "[error]") {
  Pair p;
  CHECK(p.run(bad_key(p)).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(state_of(p.a.qp.get()) == IBV_QPS_ERR);
}

TEST_CASE("a remote access error puts the responder into ERR", "[error]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64, 3) == 0);
  CHECK(p.run(bad_key(p)).status == IBV_WC_REM_ACCESS_ERR);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.wr_id == 3);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(state_of(p.b.qp.get()) == IBV_QPS_ERR);
}

TEST_CASE("a completion in error names its work request and queue pair", "[error]") {
  Pair p;
  Wr w = bad_key(p);
  w.wr.wr_id = 0xfedcba9876543210;
  const ibv_wc wc = p.run(w);
  CHECK(wc.wr_id == 0xfedcba9876543210);
  CHECK(wc.qp_num == p.a.qp->qp_num);
}

TEST_CASE("unsignalled work that fails completes in error", "[error]") {
  Pair p;
  Wr w = bad_key(p);
  w.wr.send_flags = 0;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("work before a failing request completes well", "[error]") {
  Pair p;
  Wr good = p.write(8), bad = bad_key(p);
  REQUIRE(p.post(good) == 0);
  REQUIRE(p.post(bad) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("work behind a failing request is flushed in order", "[error]") {
  Pair p;
  Wr bad = bad_key(p);
  REQUIRE(p.post(bad) == 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    Wr w = p.write(8, 0, 128);
    w.wr.wr_id = i;
    REQUIRE(p.post(w) == 0);
  }
  CHECK(wait(p.a.cq.get()).status == IBV_WC_REM_ACCESS_ERR);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const ibv_wc wc = wait(p.a.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("a bad local key is a local protection error", "[error]") {
  Pair p;
  CHECK(p.run(bad_local_key(p)).status == bad_lkey_status());
  CHECK(state_of(p.a.qp.get()) == IBV_QPS_ERR);
}

TEST_CASE("a bad local key does not harm the work before it", "[error]") {
  Pair p;
  p.a.fill(0, 8);
  Wr good = p.write(8), bad = bad_local_key(p);
  REQUIRE(p.post(good) == 0);
  REQUIRE(p.post(bad) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.a.cq.get()).status == bad_lkey_status());
  CHECK(p.same(8));
}

TEST_CASE("a local protection error leaves the peer alone", "[error]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  CHECK(p.run(bad_local_key(p)).status == bad_lkey_status());
  CHECK(state_of(p.b.qp.get()) == IBV_QPS_RTS);
  CHECK(quiet(p.b.cq.get()));
}

TEST_CASE("a SEND longer than its receive is an invalid request to the sender", "[error]") {
  Pair p;
  REQUIRE(p.b.receive(0, 10) == 0);
  CHECK(p.run(p.send(11)).status == too_long_status());
}

TEST_CASE("a SEND longer than its receive is a length error to the receiver", "[error]") {
  Pair p;
  REQUIRE(p.b.receive(0, 10, 4) == 0);
  Wr w = p.send(11);
  REQUIRE(p.post(w) == 0);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.status == too_short_status());
  CHECK(wc.wr_id == 4);
}

TEST_CASE("a SEND that overruns its receive does not write behind it", "[error]") {
  Pair p;
  p.a.fill(0, 3000);
  REQUIRE(p.b.receive(0, 1500) == 0);
  CHECK(p.run(p.send(3000)).status == too_long_status());
  for (std::size_t i = 1500; i < 3000; ++i) REQUIRE(int{p.b.buffer[i]} == 0);
}

TEST_CASE("a SEND without a receive waits for one", "[error]") {
  Pair p;
  p.a.fill(0, 8);
  Wr w = p.send(8);
  REQUIRE(p.post(w) == 0);
  CHECK(quiet(p.a.cq.get(), milliseconds(40)));
  REQUIRE(p.b.receive(0, 64) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).byte_len == 8);
  CHECK(p.same(8));
}

TEST_CASE("a WRITE with immediate without a receive waits for one", "[error]") {
  Pair p;
  Wr w = p.request(IBV_WR_RDMA_WRITE_WITH_IMM, 8);
  REQUIRE(p.post(w) == 0);
  CHECK(quiet(p.a.cq.get(), milliseconds(40)));
  REQUIRE(p.b.receive(0, 0) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_CASE("a plain WRITE needs no receive", "[error]") {
  Pair p(with_rnr_retry(0));
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
}

TEST_CASE("a SEND gives up when the RNR retries are used up", "[error]") {
  Pair p(with_rnr_retry(2));
  CHECK(p.run(p.send(8)).status == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(state_of(p.a.qp.get()) == IBV_QPS_ERR);
}

TEST_CASE("a SEND without RNR retries fails at the first NAK", "[error]") {
  Pair p(with_rnr_retry(0));
  CHECK(p.run(p.send(8)).status == IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_CASE("a receiver that was not ready keeps working", "[error]") {
  Pair p(with_rnr_retry(0), {});
  CHECK(p.run(p.send(8)).status == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(state_of(p.b.qp.get()) == IBV_QPS_RTS);
}

TEST_CASE("a peer queue pair that was destroyed exceeds the retries", "[error]") {
  Pair p(impatient());
  p.b.qp.reset();
  const auto begin = Clock::now();
  CHECK(p.run(p.write(8)).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(Clock::now() - begin >= milliseconds(16));  // at least one timeout
}

TEST_CASE("a peer queue pair in RESET exceeds the retries", "[error]") {
  Pair p(impatient());
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_RESET) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("a peer queue pair in INIT exceeds the retries", "[error]") {
  Pair p(impatient());
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_RESET) == 0);
  REQUIRE(p.b.init(p.b.qp.get()) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("a peer queue pair in ERR exceeds the retries", "[error]") {
  Pair p(impatient());
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("a queue pair number that nobody has exceeds the retries", "[error]") {
  Endpoint a(0, impatient()), b(1);
  REQUIRE(a.init(a.qp.get()) == 0);
  const std::uint32_t nobody = b.qp->qp_num ^ 0x3000;
  REQUIRE(a.rtr(a.qp.get(), nobody, b) == 0);
  REQUIRE(a.rts(a.qp.get()) == 0);
  Wr w;
  w.sge = a.sge(0, 8);
  w.wr.num_sge = 1;
  w.wr.opcode = IBV_WR_RDMA_WRITE;
  w.wr.wr.rdma = {b.address(), b.mr->rkey};
  REQUIRE(post(a.qp.get(), w) == 0);
  CHECK(wait(a.cq.get()).status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("ERR flushes posted receives in order", "[error]") {
  Pair p;
  for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(p.b.receive(0, 64, i) == 0);
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  for (std::uint64_t i = 0; i < 5; ++i) {
    const ibv_wc wc = wait(p.b.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(wc.qp_num == p.b.qp->qp_num);
  }
}

TEST_CASE("ERR flushes sends that wait", "[error]") {
  Pair p;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Wr w = p.send(8);
    w.wr.wr_id = i;
    REQUIRE(p.post(w) == 0);  // nothing is posted to receive them
  }
  REQUIRE(to_state(p.a.qp.get(), IBV_QPS_ERR) == 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const ibv_wc wc = wait(p.a.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("ERR flushes unsignalled sends too", "[error]") {
  Pair p;
  Wr w = p.send(8);
  w.wr.send_flags = 0;
  REQUIRE(p.post(w) == 0);
  REQUIRE(to_state(p.a.qp.get(), IBV_QPS_ERR) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("a send posted in ERR is flushed", "[error]") {
  Pair p;
  REQUIRE(to_state(p.a.qp.get(), IBV_QPS_ERR) == 0);
  Wr w = p.write(8);
  if (deviates("error-refuses-posts")) {
    CHECK(p.post(w) == posting_error(refusal_in_error()));
  } else {
    CHECK(p.run(w).status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("a receive posted in ERR is flushed", "[error]") {
  Pair p;
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  const int rc = p.b.receive(0, 64, 8);
  if (deviates("error-refuses-posts")) {
    CHECK(rc == posting_error(refusal_in_error()));
    return;
  }
  REQUIRE(rc == 0);
  if (deviates("err-receive-not-flushed")) {
    CHECK(quiet(p.b.cq.get()));
  } else {
    CHECK(wait(p.b.cq.get()).status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("an error of one queue pair leaves others on the same CQ alone", "[error]") {
  Pair p;
  const Qp qa = p.a.make_qp(), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  CHECK(p.run(bad_key(p)).status == IBV_WC_REM_ACCESS_ERR);
  Wr w = p.write(8);
  REQUIRE(post(qa.get(), w) == 0);
  const ibv_wc wc = wait(p.a.cq.get());
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.qp_num == qa->qp_num);
}

TEST_CASE("destroying a queue pair with posted work gives no completion afterwards", "[error]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  p.b.qp.reset();
  CHECK(quiet(p.b.cq.get()));
}
