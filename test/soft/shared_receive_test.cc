// Shared receive queues of the soft HCA.
#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

Options with_srq(std::uint32_t wr = 8) {
  Options o;
  o.srq_wr = wr;
  return o;
}

int send(Side& from, std::uint32_t bytes, std::uint64_t id = 1) {
  auto w = from.request(IBV_WR_SEND, 0, bytes, 0, 0);
  w.wr.wr_id = id;
  return from.post(w);
}

}  // namespace

TEST_CASE("QPs take the receives of their SRQ in order", "[soft]") {
  Pair p(with_srq());
  for (std::uint64_t id : {1u, 2u, 3u}) REQUIRE(p.b.post_receive(id * 100000, 70000, id) == 0);
  for (std::size_t i = 0; i < 70000; ++i) p.a.buffer[i] = static_cast<std::uint8_t>(i % 253);
  REQUIRE(send(p.a, 8) == 0);
  REQUIRE(send(p.a, 70000) == 0);
  auto w = p.a.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 16, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  ibv_wc wc = p.wait(p.b);
  CHECK(wc.wr_id == 1);
  CHECK(wc.byte_len == 8);
  wc = p.wait(p.b);
  CHECK(wc.wr_id == 2);
  CHECK(wc.byte_len == 70000);
  CHECK(std::memcmp(p.b.buffer.data() + 200000, p.a.buffer.data(), 70000) == 0);
  wc = p.wait(p.b);
  CHECK(wc.wr_id == 3);
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.qp_num == p.b.qp->qp_num);
}

TEST_CASE("two QPs share what is posted", "[soft]") {
  Pair p(with_srq());
  Options o;
  Side c(o);  // sends to a second QP of b
  ibv_qp* first = p.b.qp;
  p.b.make_qp();
  ibv_qp* second = p.b.qp;
  c.connect(second->qp_num, p.b.gid);
  p.b.connect(c.qp->qp_num, c.gid);
  REQUIRE(p.b.post_receive(0, 64, 1) == 0);
  REQUIRE(p.b.post_receive(64, 64, 2) == 0);
  REQUIRE(send(p.a, 8) == 0);
  ibv_wc wc = p.wait(p.b);
  CHECK(wc.wr_id == 1);
  CHECK(wc.qp_num == first->qp_num);
  REQUIRE(send(c, 8) == 0);
  wc = p.wait(p.b);
  CHECK(wc.wr_id == 2);
  CHECK(wc.qp_num == second->qp_num);
  CHECK(soft::destroy_srq(p.b.srq) == EBUSY);
  p.b.verbs.destroy_qp(first);
}

TEST_CASE("an empty SRQ is receiver-not-ready until something is posted", "[soft]") {
  Options o = with_srq();
  o.rnr_retry = GENERATE(std::uint8_t{7}, std::uint8_t{1});
  Pair p(o);
  REQUIRE(send(p.a, 8) == 0);
  if (o.rnr_retry == 7) {
    CHECK(p.quiet(p.a, 50));
    REQUIRE(p.b.post_receive(0, 64, 9) == 0);
    CHECK(p.wait(p.b).wr_id == 9);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  } else {
    CHECK(p.wait(p.a).status == IBV_WC_RNR_RETRY_EXC_ERR);
  }
}

TEST_CASE("the limit event comes once for each arming", "[soft]") {
  Pair p(with_srq());
  for (std::uint64_t id = 0; id < 4; ++id) REQUIRE(p.b.post_receive(0, 64, id) == 0);
  ibv_srq_attr a{};
  a.srq_limit = 3;
  REQUIRE(soft::modify_srq(p.b.srq, &a, IBV_SRQ_LIMIT) == 0);
  REQUIRE(send(p.a, 8) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
  CHECK(p.b.next_event(nullptr, 20) == -1);  // three left: not below
  REQUIRE(send(p.a, 8) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
  ibv_async_event e{};
  CHECK(p.b.next_event(&e) == IBV_EVENT_SRQ_LIMIT_REACHED);
  CHECK(e.element.srq == p.b.srq);
  REQUIRE(soft::query_srq(p.b.srq, &a) == 0);
  CHECK(a.srq_limit == 0);
  REQUIRE(send(p.a, 8) == 0);
  CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
  CHECK(p.b.next_event(nullptr, 20) == -1);
  a.srq_limit = 2;  // one is left: low already
  REQUIRE(soft::modify_srq(p.b.srq, &a, IBV_SRQ_LIMIT) == 0);
  CHECK(p.b.next_event() == IBV_EVENT_SRQ_LIMIT_REACHED);
}

TEST_CASE("a QP in error leaves the SRQ's receives to the others", "[soft]") {
  Pair p(with_srq());
  REQUIRE(p.b.post_receive(0, 64, 1) == 0);
  REQUIRE(p.b.to_error() == 0);
  CHECK(p.quiet(p.b));  // nothing is flushed
  ibv_async_event e{};
  CHECK(p.b.next_event(&e) == IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(e.element.qp == p.b.qp);
}

TEST_CASE("a message too long for its shared receive fails that QP and that receive only",
          "[soft]") {
  Pair p(with_srq());
  REQUIRE(p.b.post_receive(0, 10, 1) == 0);
  REQUIRE(p.b.post_receive(0, 10, 2) == 0);
  REQUIRE(send(p.a, 11) == 0);
  ibv_wc wc = p.wait(p.b);
  CHECK(wc.wr_id == 1);
  CHECK(wc.status == IBV_WC_LOC_LEN_ERR);
  CHECK(p.quiet(p.b));
  CHECK(p.wait(p.a).status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("an SRQ checks its capacity, and may be resized", "[soft]") {
  Pair p(with_srq(2));
  ibv_srq_attr a{};
  REQUIRE(soft::query_srq(p.b.srq, &a) == 0);
  CHECK(a.max_wr == 2);
  CHECK(a.max_sge == 4);
  REQUIRE(p.b.post_receive(0, 64, 1) == 0);
  REQUIRE(p.b.post_receive(64, 64, 2) == 0);
  CHECK(p.b.post_receive(0, 64, 3) == ENOMEM);
  a.max_wr = 1;
  CHECK(soft::modify_srq(p.b.srq, &a, IBV_SRQ_MAX_WR) == EINVAL);
  a.max_wr = 5;
  REQUIRE(soft::modify_srq(p.b.srq, &a, IBV_SRQ_MAX_WR) == 0);
  REQUIRE(p.b.post_receive(128, 64, 3) == 0);
  a.srq_limit = 6;
  CHECK(soft::modify_srq(p.b.srq, &a, IBV_SRQ_LIMIT) == EINVAL);
  CHECK(soft::modify_srq(p.b.srq, &a, 1 << 20) == EINVAL);
  for (std::uint64_t id : {1u, 2u, 3u}) {
    p.a.buffer[0] = static_cast<std::uint8_t>(id);
    REQUIRE(send(p.a, 8) == 0);
    CHECK(p.wait(p.b).wr_id == id);
    CHECK(p.b.buffer[(id - 1) * 64] == id);
  }
}

TEST_CASE("what an SRQ and its QPs refuse", "[soft]") {
  Pair p(with_srq());
  ibv_srq_init_attr a{};
  CHECK(soft::create_srq(p.a.pd, &a) == nullptr);
  CHECK(errno == EINVAL);
  a.attr.max_wr = 1u << 30;
  CHECK(soft::create_srq(p.a.pd, &a) == nullptr);
  a.attr = {4, 1000, 0};
  CHECK(soft::create_srq(p.a.pd, &a) == nullptr);
  ibv_recv_wr w{}, *bad = nullptr;
  CHECK(ibv_post_recv(p.b.qp, &w, &bad) == EINVAL);  // the QP has no receive queue of its own
  CHECK(bad == &w);
  ibv_sge s[5] = {};
  w.sg_list = s;
  w.num_sge = 5;
  CHECK(ibv_post_srq_recv(p.b.srq, &w, &bad) == EINVAL);
  ibv_qp_attr got{};
  ibv_qp_init_attr init{};
  REQUIRE(p.b.verbs.query_qp(p.b.qp, &got, IBV_QP_CAP, &init) == 0);
  CHECK(init.srq == p.b.srq);
  CHECK(init.cap.max_recv_wr == 0);
}
