// Shared receive queues (IB vol. 1, 10.2.9).
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

Options shared() {
  Options o;
  o.srq = true;
  return o;
}
int post_shared(Endpoint& e, std::size_t at, std::uint32_t bytes, std::uint64_t id) {
  ibv_sge s = e.sge(at, bytes);
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &s;
  wr.num_sge = bytes != 0 ? 1 : 0;
  return ibv_post_srq_recv(e.srq.get(), &wr, &bad);
}
int set_limit(Endpoint& e, std::uint32_t limit) {
  ibv_srq_attr a{};
  a.srq_limit = limit;
  return ibv_modify_srq(e.srq.get(), &a, IBV_SRQ_LIMIT);
}
ibv_srq_attr query(Endpoint& e) {
  ibv_srq_attr a{};
  REQUIRE(ibv_query_srq(e.srq.get(), &a) == 0);
  return a;
}
// `b` receives through an SRQ, by two queue pairs.
struct Shared : Pair {
  Qp qa, qb;
  Shared() : Pair({}, shared()), qa(a.make_qp()), qb(b.make_qp()) {
    connect(a, qa.get(), b, qb.get());
  }
};

}  // namespace

TEST_CASE("an SRQ grants at least the capacities asked for", "[srq]") {
  Endpoint e(0, shared());
  const ibv_srq_attr a = query(e);
  CHECK(a.max_wr >= 32);
  CHECK(a.max_sge >= 4);
  CHECK(a.srq_limit == 0);
}

TEST_CASE("an SRQ deeper than the device allows is refused", "[srq]") {
  Endpoint e;
  ibv_device_attr d{};
  REQUIRE(ibv_query_device(e.context.get(), &d) == 0);
  REQUIRE(d.max_srq_wr > 0);
  ibv_srq_init_attr a{};
  a.attr.max_wr = static_cast<std::uint32_t>(d.max_srq_wr) + 1;
  a.attr.max_sge = 1;
  errno = 0;
  const Srq srq(ibv_create_srq(e.pd.get(), &a));
  CHECK(srq == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("an SRQ with more SGEs than the device allows is refused", "[srq]") {
  Endpoint e;
  ibv_device_attr d{};
  REQUIRE(ibv_query_device(e.context.get(), &d) == 0);
  ibv_srq_init_attr a{};
  a.attr.max_wr = 8;
  a.attr.max_sge = static_cast<std::uint32_t>(d.max_srq_sge) + 1;
  errno = 0;
  const Srq srq(ibv_create_srq(e.pd.get(), &a));
  CHECK(srq == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("a SEND takes its receive from the SRQ", "[srq]") {
  Shared p;
  for (const std::uint32_t bytes : {8u, 50000u}) {
    REQUIRE(post_shared(p.b, 0, bytes + 64, bytes) == 0);
    p.a.fill(0, bytes);
    CHECK(p.run(p.send(bytes)).status == IBV_WC_SUCCESS);
    const ibv_wc wc = wait(p.b.cq.get());
    CHECK(wc.wr_id == bytes);
    CHECK(wc.byte_len == bytes);
    CHECK(wc.qp_num == p.b.qp->qp_num);
    CHECK(p.same(bytes));
  }
}

TEST_CASE("a WRITE with immediate takes its receive from the SRQ", "[srq]") {
  Shared p;
  REQUIRE(post_shared(p.b, 0, 0, 3) == 0);
  CHECK(p.run(p.request(IBV_WR_RDMA_WRITE_WITH_IMM, 8)).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_CASE("two queue pairs share the receives of an SRQ in order", "[srq]") {
  Shared p;
  for (std::uint64_t i = 0; i < 6; ++i) REQUIRE(post_shared(p.b, 64 * i, 64, i) == 0);
  for (std::uint64_t i = 0; i < 6; ++i) {
    Wr w = p.send(8);
    REQUIRE(post(i % 2 == 0 ? p.a.qp.get() : p.qa.get(), w) == 0);
    const ibv_wc wc = wait(p.b.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.qp_num == (i % 2 == 0 ? p.b.qp->qp_num : p.qb->qp_num));
    CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("a SEND waits while the SRQ is empty", "[srq]") {
  Shared p;
  Wr w = p.send(8);
  REQUIRE(p.post(w) == 0);
  CHECK(quiet(p.a.cq.get(), milliseconds(30)));
  REQUIRE(post_shared(p.b, 0, 64, 1) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).wr_id == 1);
}

TEST_CASE("an empty SRQ uses up the RNR retries", "[srq]") {
  Options once;
  once.rnr_retry = 1;
  Pair p(once, shared());
  CHECK(p.run(p.send(8)).status == IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_CASE("an SRQ's limit event fires when fewer receives are left", "[srq]") {
  Shared p;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(post_shared(p.b, 0, 64, i) == 0);
  REQUIRE(set_limit(p.b, 3) == 0);
  CHECK(query(p.b).srq_limit == 3);
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  CHECK_FALSE(next_event(p.b.context.get(), milliseconds(0)));  // three are left
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  const auto event = next_event(p.b.context.get());
  REQUIRE(event);
  CHECK(event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
  CHECK(event->element.srq == p.b.srq.get());
}

TEST_CASE("an SRQ's limit event fires once per arming", "[srq]") {
  Shared p;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(post_shared(p.b, 0, 64, i) == 0);
  REQUIRE(set_limit(p.b, 4) == 0);
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  REQUIRE(next_event(p.b.context.get()));
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  CHECK_FALSE(next_event(p.b.context.get(), kQuiet));
  CHECK(query(p.b).srq_limit == 0);
}

TEST_CASE("an SRQ limit above its depth is refused", "[srq]") {
  Endpoint e(0, shared());
  CHECK(set_limit(e, query(e).max_wr + 1) == EINVAL);
}

TEST_CASE("a full SRQ refuses with ENOMEM", "[srq]") {
  Endpoint e(0, shared());
  const std::uint32_t n = query(e).max_wr;
  std::uint32_t posted = 0;
  while (posted <= 2 * n && post_shared(e, 0, 0, 0) == 0) ++posted;
  CHECK(posted >= 32);
  CHECK(posted <= n);
  CHECK(post_shared(e, 0, 0, 0) == ENOMEM);
}

TEST_CASE("more SGEs than an SRQ has are refused", "[srq]") {
  Endpoint e(0, shared());
  const std::uint32_t n = query(e).max_sge + 1;
  std::vector<ibv_sge> s(n, e.sge(0, 1));
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = s.data();
  wr.num_sge = static_cast<int>(n);
  CHECK(ibv_post_srq_recv(e.srq.get(), &wr, &bad) == EINVAL);
  CHECK(bad == &wr);
}

TEST_CASE("a queue pair with an SRQ takes no receives of its own", "[srq]") {
  Endpoint e(0, shared());
  REQUIRE(e.init(e.qp.get()) == 0);
  CHECK(e.receive(0, 64) == (deviates("refused-sends-are-enomem") ? ENOMEM : EINVAL));
}

TEST_CASE("an SRQ that a queue pair uses is busy", "[srq]") {
  Endpoint e(0, shared());
  CHECK(ibv_destroy_srq(e.srq.get()) == EBUSY);
  e.qp.reset();
  CHECK(ibv_destroy_srq(e.srq.release()) == 0);
}

TEST_CASE("a PD with an SRQ is busy", "[srq]") {
  Endpoint e(0, shared());
  e.qp.reset();
  e.mr.reset();
  CHECK(ibv_dealloc_pd(e.pd.get()) == EBUSY);
}

TEST_CASE("a query of the queue pair names its SRQ", "[srq]") {
  Endpoint e(0, shared());
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(e.qp.get(), &a, IBV_QP_STATE, &init) == 0);
  CHECK(init.srq == e.srq.get());
}

TEST_CASE("receives stay in the SRQ when one of its queue pairs fails", "[srq]") {
  Shared p;
  REQUIRE(post_shared(p.b, 0, 64, 1) == 0);
  REQUIRE(to_state(p.b.qp.get(), IBV_QPS_ERR) == 0);
  CHECK(quiet(p.b.cq.get()));
  Wr w = p.send(8);
  REQUIRE(post(p.qa.get(), w) == 0);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.wr_id == 1);
  CHECK(wc.qp_num == p.qb->qp_num);
}

TEST_CASE("a receive of an SRQ that is too short is a length error", "[srq]") {
  Shared p;
  REQUIRE(post_shared(p.b, 0, 4, 1) == 0);
  CHECK(p.run(p.send(8)).status == too_long_status());
  CHECK(wait(p.b.cq.get()).status == too_short_status());
}
