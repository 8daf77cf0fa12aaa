// What the specification leaves to the adapter, and where soft-RoCE does otherwise.  All else that
// verbs promise is tried in test/fabric/conformance, on both.
#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

ibv_qp_attr query(Side& s, ibv_qp_init_attr* init = nullptr) {
  ibv_qp_attr a{};
  ibv_qp_init_attr own{};
  REQUIRE(s.verbs.query_qp(s.qp, &a, ~0, init != nullptr ? init : &own) == 0);
  return a;
}

Options with_srq(std::uint32_t wr) {
  Options o;
  o.srq_wr = wr;
  return o;
}

// A message of 8 bytes to `p.b`, which takes receive `id` for it.
void send(Pair& p, std::uint64_t id) {
  auto w = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.b).wr_id == id);
}

}  // namespace

TEST_CASE("a queue pair may be as large as the device says, in all at once", "[soft]") {
  Side s{Options{}};
  ibv_device_attr d{};
  REQUIRE(s.verbs.query_device(s.context, &d) == 0);
  CHECK(d.max_qp_wr >= 16384);
  CHECK(d.max_sge >= 16);
  CHECK(d.max_qp_rd_atom >= 16);
  const auto wr = static_cast<std::uint32_t>(d.max_qp_wr);
  const auto sge = static_cast<std::uint32_t>(d.max_sge);
  ibv_qp_init_attr a{};
  a.send_cq = a.recv_cq = s.cq;
  a.qp_type = IBV_QPT_RC;
  a.cap = {wr, wr, sge, sge, 512};
  ibv_qp* qp = s.verbs.create_qp(s.pd, &a);
  REQUIRE(qp != nullptr);
  CHECK(a.cap.max_send_wr >= wr);
  CHECK(a.cap.max_recv_sge >= sge);
  CHECK(a.cap.max_inline_data >= 512);
  CHECK(s.verbs.destroy_qp(qp) == 0);
  a.cap.max_inline_data = 513;
  CHECK(s.verbs.create_qp(s.pd, &a) == nullptr);
}

TEST_CASE("a query tells the state twice, and nothing of what was before RESET", "[soft]") {
  Pair p;
  CHECK(query(p.a).cur_qp_state == IBV_QPS_RTS);
  CHECK(query(p.a).dest_qp_num == p.b.qp->qp_num);
  ibv_qp_attr a{};
  a.min_rnr_timer = 32;
  CHECK(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_MIN_RNR_TIMER) == EINVAL);
  REQUIRE(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_STATE) == 0);
  CHECK(query(p.a).dest_qp_num == 0);
  CHECK(p.a.post_receive(0, 8) == EINVAL);
}

TEST_CASE("a request that is not modelled is refused when it is posted", "[soft]") {
  Pair p;
  auto w = p.a.request(IBV_WR_SEND_WITH_INV, 0, 8, 0, 0);
  CHECK(p.a.post(w) == EOPNOTSUPP);
}

TEST_CASE("a CQ that overflowed says so once, and at each poll", "[soft]") {
  Options o;
  o.cqe = 3;
  Pair p(o);
  for (int i = 0; i < 8; ++i) {
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
  }
  CHECK(p.a.next_event() == IBV_EVENT_CQ_ERR);
  CHECK(p.a.next_event(nullptr, 20) == -1);
  ibv_wc wc{};
  CHECK(ibv_poll_cq(p.a.cq, 1, &wc) < 0);
}

TEST_CASE("an SRQ that is low when its limit is set says so at once", "[soft]") {
  Pair p(with_srq(8));
  REQUIRE(p.b.post_receive(0, 64) == 0);
  ibv_srq_attr a{};
  a.srq_limit = 2;
  REQUIRE(soft::modify_srq(p.b.srq, &a, IBV_SRQ_LIMIT) == 0);
  CHECK(p.b.next_event() == IBV_EVENT_SRQ_LIMIT_REACHED);
  CHECK(soft::modify_srq(p.b.srq, &a, 1 << 20) == EINVAL);
}

TEST_CASE("an SRQ may be resized around what it holds", "[soft]") {
  Pair p(with_srq(2));
  REQUIRE(p.b.post_receive(0, 64, 1) == 0);
  REQUIRE(p.b.post_receive(64, 64, 2) == 0);
  CHECK(p.b.post_receive(0, 64, 3) == ENOMEM);
  ibv_srq_attr a{};
  a.max_wr = 1;
  CHECK(soft::modify_srq(p.b.srq, &a, IBV_SRQ_MAX_WR) == EINVAL);
  a.max_wr = 5;
  REQUIRE(soft::modify_srq(p.b.srq, &a, IBV_SRQ_MAX_WR) == 0);
  REQUIRE(p.b.post_receive(128, 64, 3) == 0);
  for (std::uint64_t id : {1u, 2u, 3u}) {
    p.a.buffer[0] = static_cast<std::uint8_t>(id);
    send(p, id);
    CHECK(p.b.buffer[(id - 1) * 64] == id);
  }
}

TEST_CASE("an SRQ holds one receive at least, and its queue pairs none of their own", "[soft]") {
  Pair p(with_srq(8));
  ibv_srq_init_attr a{};
  CHECK(soft::create_srq(p.a.pd, &a) == nullptr);
  CHECK(errno == EINVAL);
  ibv_qp_init_attr init{};
  CHECK(query(p.b, &init).cap.max_recv_wr == 0);
  CHECK(init.cap.max_recv_wr == 0);
}
