// Behaviour of RC queue pairs on the soft HCA, each named as the IB specification would.
#include <poll.h>
#include <sys/mman.h>

#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

TEST_CASE("RDMA WRITE places the bytes and completes at the requester only", "[soft]") {
  Pair p;
  const std::uint32_t bytes = GENERATE(1u, 8u, 63u, 4096u, 100000u);
  for (std::uint32_t i = 0; i < bytes; ++i) p.a.buffer[i] = static_cast<std::uint8_t>(i * 13 + 1);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, bytes, p.b.address(128), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  ibv_wc wc = p.wait(p.a);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
  CHECK(wc.wr_id == 77);
  CHECK(std::memcmp(p.a.buffer.data(), p.b.buffer.data() + 128, bytes) == 0);
  CHECK(p.b.buffer[127] == 0);
  CHECK(p.b.buffer[128 + bytes] == 0);
  CHECK(p.quiet(p.b));
}

TEST_CASE("RDMA WRITE with immediate consumes a receive and reports length and value", "[soft]") {
  Pair p;
  const std::uint32_t bytes = GENERATE(0u, 8u, 70000u);
  REQUIRE(p.b.post_receive(0, 0) == 0);
  auto w = p.a.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0, bytes, p.b.address(), p.b.mr->rkey);
  if (bytes == 0) w.wr.num_sge = 0;
  REQUIRE(p.a.post(w) == 0);
  ibv_wc wc = p.wait(p.b);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.byte_len == bytes);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == 0x01020304);
  CHECK(wc.wr_id == 55);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

TEST_CASE("unsignalled work requests give no completion but are done in order", "[soft]") {
  Pair p;
  for (std::uint8_t i = 1; i <= 40; ++i) {
    p.a.buffer[0] = i;
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 1, p.b.address(), p.b.mr->rkey);
    w.wr.send_flags = i == 40 ? IBV_SEND_SIGNALED : 0;
    REQUIRE(p.a.post(w) == 0);
  }
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(p.b.buffer[0] == 40);
  CHECK(p.quiet(p.a));
}

TEST_CASE("inline data may be overwritten as soon as the post returns", "[soft]") {
  Pair p;
  p.a.buffer[0] = 9;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 1, p.b.address(), p.b.mr->rkey);
  w.wr.send_flags |= IBV_SEND_INLINE;
  w.sge.lkey = 0xdead;  // inline needs no key
  REQUIRE(p.a.post(w) == 0);
  p.a.buffer[0] = 1;
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(p.b.buffer[0] == 9);
  auto big = p.a.request(IBV_WR_RDMA_WRITE, 0, 65, p.b.address(), p.b.mr->rkey);
  big.wr.send_flags |= IBV_SEND_INLINE;
  CHECK(p.a.post(big) == EINVAL);
}

TEST_CASE("a gather list is written as one message", "[soft]") {
  Pair p;
  for (std::size_t i = 0; i < 64; ++i) p.a.buffer[i] = static_cast<std::uint8_t>(i);
  ibv_sge s[3] = {{p.a.address(0), 3, p.a.mr->lkey},
                  {p.a.address(32), 0, p.a.mr->lkey},
                  {p.a.address(10), 20, p.a.mr->lkey}};
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 0, p.b.address(), p.b.mr->rkey);
  w.wr.sg_list = s;
  w.wr.num_sge = 3;
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(p.a.qp, &w.wr, &bad) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(p.b.buffer.data(), p.a.buffer.data(), 3) == 0);
  CHECK(std::memcmp(p.b.buffer.data() + 3, p.a.buffer.data() + 10, 20) == 0);
}

TEST_CASE("RDMA READ brings remote bytes", "[soft]") {
  Pair p;
  const std::uint32_t bytes = GENERATE(1u, 4096u, 300000u);
  for (std::uint32_t i = 0; i < bytes; ++i) p.b.buffer[i] = static_cast<std::uint8_t>(i * 7 + 3);
  auto w = p.a.request(IBV_WR_RDMA_READ, 0, bytes, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  ibv_wc wc = p.wait(p.a);
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_READ);
  CHECK(std::memcmp(p.a.buffer.data(), p.b.buffer.data(), bytes) == 0);
}

TEST_CASE("SEND fills the posted receives in order", "[soft]") {
  Pair p;
  REQUIRE(p.b.post_receive(0, 100, 1) == 0);
  REQUIRE(p.b.post_receive(1000, 50000, 2) == 0);
  for (std::size_t i = 0; i < 50000; ++i) p.a.buffer[i] = static_cast<std::uint8_t>(i % 251);
  auto w = p.a.request(IBV_WR_SEND, 0, 100, 0, 0);
  REQUIRE(p.a.post(w) == 0);
  auto v = p.a.request(IBV_WR_SEND_WITH_IMM, 0, 40000, 0, 0);
  REQUIRE(p.a.post(v) == 0);
  ibv_wc wc = p.wait(p.b);
  CHECK(wc.wr_id == 1);
  CHECK(wc.opcode == IBV_WC_RECV);
  CHECK(wc.byte_len == 100);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) == 0);
  wc = p.wait(p.b);
  CHECK(wc.wr_id == 2);
  CHECK(wc.byte_len == 40000);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(std::memcmp(p.b.buffer.data() + 1000, p.a.buffer.data(), 40000) == 0);
}

TEST_CASE("atomics act on the remote word and give back the old value", "[soft]") {
  Pair p;
  auto* word = reinterpret_cast<std::uint64_t*>(p.b.buffer.data());
  auto* old = reinterpret_cast<std::uint64_t*>(p.a.buffer.data());
  *word = 40;
  auto w = p.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, p.b.address(), p.b.mr->rkey);
  w.wr.wr.atomic.compare_add = 2;
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).opcode == IBV_WC_FETCH_ADD);
  CHECK(*word == 42);
  CHECK(*old == 40);
  auto c = p.a.request(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, p.b.address(), p.b.mr->rkey);
  c.wr.wr.atomic.compare_add = 41;
  c.wr.wr.atomic.swap = 5;
  REQUIRE(p.a.post(c) == 0);
  CHECK(p.wait(p.a).opcode == IBV_WC_COMP_SWAP);
  CHECK(*word == 42);
  CHECK(*old == 42);
  c.wr.wr.atomic.compare_add = 42;
  REQUIRE(p.a.post(c) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(*word == 5);
  auto u = p.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, p.b.address(4), p.b.mr->rkey);
  CHECK(p.a.post(u) == EINVAL);  // not 8-byte aligned
}

TEST_CASE("a refused remote access ends in errors at both ends and an event", "[soft]") {
  const int kind = GENERATE(0, 1, 2, 3, 4);
  Options o;
  if (kind == 3) o.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  if (kind == 4) o.qp_access = IBV_ACCESS_REMOTE_READ;
  const std::uint32_t bytes = GENERATE(8u, 65536u);
  Pair p(o);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, bytes, p.b.address(), p.b.mr->rkey);
  if (kind == 0) w.wr.wr.rdma.rkey ^= 1;                                         // stale key
  if (kind == 1) w.wr.wr.rdma.remote_addr = p.b.address(p.b.buffer.size() - 4);  // over the end
  if (kind == 2) w.wr.wr.rdma.remote_addr = p.b.address() - 1;                   // before the start
  REQUIRE(p.a.post(w) == 0);
  REQUIRE(p.b.post_receive(0, 0) == 0);
  // What the QP does not allow at all is an invalid request; what the key refuses, an access error.
  CHECK(p.wait(p.a).status == (kind == 4 ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR));
  CHECK(p.a.qp->state == IBV_QPS_ERR);
  CHECK(p.wait(p.b).status == IBV_WC_WR_FLUSH_ERR);  // the responder is in error too
  pollfd fd{p.b.context->async_fd, POLLIN, 0};
  REQUIRE(::poll(&fd, 1, 1000) == 1);
  ibv_async_event e{};
  REQUIRE(p.b.verbs.get_async_event(p.b.context, &e) == 0);
  CHECK(e.event_type == (kind == 4 ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR));
  CHECK(e.element.qp == p.b.qp);
  p.b.verbs.ack_async_event(&e);
}

TEST_CASE("an MR of another protection domain is not reachable", "[soft]") {
  Pair p;
  ibv_pd* other = p.b.verbs.alloc_pd(p.b.context);
  ibv_mr* mr =
      p.b.verbs.reg_mr_iova2(other, p.b.buffer.data(), 4096, p.b.address(), p.b.options.access);
  REQUIRE(mr != nullptr);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_REM_ACCESS_ERR);
  p.b.verbs.dereg_mr(mr);
  CHECK(p.b.verbs.dealloc_pd(other) == 0);
}

TEST_CASE("a deregistered MR is refused and a PD in use cannot be freed", "[soft]") {
  Pair p;
  CHECK(p.b.verbs.dealloc_pd(p.b.pd) == EBUSY);
  std::uint32_t rkey = p.b.mr->rkey;
  p.b.verbs.dereg_mr(p.b.mr);
  p.b.mr = nullptr;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a bad lkey is a local protection error after the work before it", "[soft]") {
  Pair p;
  auto good = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  auto bad = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  bad.sge.lkey ^= 0x100;
  bad.wr.wr_id = 78;
  auto behind = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  behind.wr.wr_id = 79;
  REQUIRE(p.a.post(good) == 0);
  REQUIRE(p.a.post(bad) == 0);
  REQUIRE(p.a.post(behind) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  ibv_wc wc = p.wait(p.a);
  CHECK(wc.wr_id == 78);
  CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
  wc = p.wait(p.a);
  CHECK(wc.wr_id == 79);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("receiver not ready: waits for ever with rnr_retry 7, gives up with less", "[soft]") {
  Options o;
  o.rnr_retry = GENERATE(std::uint8_t{7}, std::uint8_t{2});
  Pair p(o);
  auto w = p.a.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  if (o.rnr_retry == 7) {
    CHECK(p.quiet(p.a, 100));
    REQUIRE(p.b.post_receive(0, 0) == 0);
    CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  } else {
    CHECK(p.wait(p.a).status == IBV_WC_RNR_RETRY_EXC_ERR);
  }
}

TEST_CASE("a SEND longer than its receive is a length error at both ends", "[soft]") {
  Pair p;
  REQUIRE(p.b.post_receive(0, 10) == 0);
  auto w = p.a.request(IBV_WR_SEND, 0, 11, 0, 0);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_LOC_LEN_ERR);
  CHECK(p.wait(p.a).status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("moving to ERR flushes both queues, and posts after it as well", "[soft]") {
  Pair p;
  REQUIRE(p.b.post_receive(0, 8, 1) == 0);
  REQUIRE(p.b.post_receive(0, 8, 2) == 0);
  REQUIRE(p.b.to_error() == 0);
  for (std::uint64_t id : {1u, 2u}) {
    ibv_wc wc = p.wait(p.b);
    CHECK(wc.wr_id == id);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  }
  REQUIRE(p.b.post_receive(0, 8, 3) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_WR_FLUSH_ERR);
  auto w = p.b.request(IBV_WR_RDMA_WRITE, 0, 8, p.a.address(), p.a.mr->rkey);
  REQUIRE(p.b.post(w) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("a peer that has gone is a retry-exceeded error after the retry time", "[soft]") {
  Pair p;  // timeout 14, 1 retry: 134 ms
  p.b.verbs.destroy_qp(p.b.qp);
  p.b.qp = nullptr;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  std::int64_t begin = now_ns();
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(now_ns() - begin > 100 * kMillisecond);
}

TEST_CASE("the state machine refuses what the specification does not have", "[soft]") {
  Options o;
  Side s(o);
  CHECK(s.to_rtr(s.qp->qp_num, s.gid) == EINVAL);  // from RESET
  CHECK(s.to_rts() == EINVAL);
  CHECK(s.post_receive(0, 8) == EINVAL);
  REQUIRE(s.to_init() == 0);
  CHECK(s.post_receive(0, 8) == 0);
  auto w = s.request(IBV_WR_RDMA_WRITE, 0, 8, s.address(), s.mr->rkey);
  CHECK(s.post(w) == EINVAL);  // not in INIT
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  CHECK(s.verbs.modify_qp(s.qp, &a, IBV_QP_STATE) == EINVAL);  // attributes are missing
  ibv_gid elsewhere = s.gid;
  elsewhere.raw[13] ^= 0xff;
  CHECK(s.to_rtr(s.qp->qp_num, elsewhere) == EHOSTUNREACH);  // another host or job
  REQUIRE(s.to_rtr(s.qp->qp_num, s.gid) == 0);
  CHECK(s.to_init() == EINVAL);
  REQUIRE(s.to_rts() == 0);
  ibv_qp_attr got{};
  ibv_qp_init_attr init{};
  REQUIRE(s.verbs.query_qp(s.qp, &got, IBV_QP_STATE, &init) == 0);
  CHECK(got.qp_state == IBV_QPS_RTS);
  CHECK(got.dest_qp_num == s.qp->qp_num);
}

TEST_CASE("a QP connected to itself is a loopback", "[soft]") {
  Options o;
  Side s(o);
  s.connect(s.qp->qp_num, s.gid);
  s.buffer[0] = 17;
  auto w = s.request(IBV_WR_RDMA_READ, 100, 1, s.address(), s.mr->rkey);
  REQUIRE(s.post(w) == 0);
  ibv_wc wc{};
  for (int i = 0; i < 100000 && ibv_poll_cq(s.cq, 1, &wc) == 0; ++i) {
  }
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(s.buffer[100] == 17);
}

TEST_CASE("a full send queue refuses, and its space comes back with completions", "[soft]") {
  Options o;
  o.rnr_retry = 7;
  Pair p(o);
  auto w = p.a.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, p.b.address(), p.b.mr->rkey);
  for (int i = 0; i < 64; ++i) REQUIRE(p.a.post(w) == 0);
  CHECK(p.a.post(w) == ENOMEM);
  // The receive queue of the side that nobody sends to stays as full as it is made.
  for (int i = 0; i < 64; ++i) REQUIRE(p.a.post_receive(0, 0) == 0);
  CHECK(p.a.post_receive(0, 0) == ENOMEM);
  for (int i = 0; i < 64; ++i) REQUIRE(p.b.post_receive(0, 0) == 0);
  for (int i = 0; i < 64; ++i) CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(p.a.post(w) == 0);
}
