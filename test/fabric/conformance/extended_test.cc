// Work requests built by ibv_wr_* calls: the same behaviours, entered by the other door.
#include <cstring>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

constexpr std::uint64_t kOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

Qp make_extended(const Endpoint& e) {
  const ibv_qp_init_attr plain = e.qp_attributes();
  ibv_qp_init_attr_ex a{};
  a.send_cq = plain.send_cq;
  a.recv_cq = plain.recv_cq;
  a.cap = plain.cap;
  a.qp_type = IBV_QPT_RC;
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  a.pd = e.pd.get();
  a.send_ops_flags = kOperations;
  return Qp(ibv_create_qp_ex(e.context.get(), &a));
}

// Two connected endpoints, and beside their queue pairs a connection whose requester is extended.
struct Extended : Pair {
  Qp qa, qb;
  ibv_qp_ex* x = nullptr;

  Extended() : qa(make_extended(a)), qb(b.make_qp()) {
    REQUIRE(qa != nullptr);
    connect(a, qa.get(), b, qb.get());
    x = ibv_qp_to_qp_ex(qa.get());
    REQUIRE(x != nullptr);
  }
  void begin(std::uint64_t id = 77) {
    ibv_wr_start(x);
    next(id);
  }
  void next(std::uint64_t id) {
    x->wr_id = id;
    x->wr_flags = IBV_SEND_SIGNALED;
  }
  void local(std::size_t at, std::uint32_t bytes) {
    ibv_wr_set_sge(x, a.mr->lkey, a.address(at), bytes);
  }
  ibv_wc finish() {
    REQUIRE(ibv_wr_complete(x) == 0);
    return wait(a.cq.get());
  }
};

}  // namespace

TEST_CASE("a plain queue pair has no extended face", "[extended]") {
  Endpoint e;
  CHECK(ibv_qp_to_qp_ex(e.qp.get()) == nullptr);
}

TEST_CASE("a WRITE by ibv_wr is a WRITE", "[extended]") {
  Extended p;
  p.a.fill(0, 3000);
  p.begin();
  ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address());
  p.local(0, 3000);
  const ibv_wc wc = p.finish();
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
  CHECK(wc.wr_id == 77);
  CHECK(p.same(3000));
}

TEST_CASE("a READ by ibv_wr is a READ", "[extended]") {
  Extended p;
  p.b.fill(0, 3000);
  p.begin();
  ibv_wr_rdma_read(p.x, p.b.mr->rkey, p.b.address());
  p.local(0, 3000);
  CHECK(p.finish().opcode == IBV_WC_RDMA_READ);
  CHECK(p.same(3000));
}

TEST_CASE("a SEND with immediate by ibv_wr brings its value", "[extended]") {
  Extended p;
  REQUIRE(post_receive(p.qb.get(), p.b.sge(0, 64), 5) == 0);
  p.a.fill(0, 8);
  p.begin();
  ibv_wr_send_imm(p.x, 0x0a0b0c0d);
  p.local(0, 8);
  CHECK(p.finish().opcode == IBV_WC_SEND);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.wr_id == 5);
  CHECK(wc.imm_data == 0x0a0b0c0d);
  CHECK(wc.byte_len == 8);
  CHECK(p.same(8));
}

TEST_CASE("a WRITE with immediate by ibv_wr consumes a receive", "[extended]") {
  Extended p;
  REQUIRE(post_receive(p.qb.get(), p.b.sge(0, 64), 5) == 0);
  p.begin();
  ibv_wr_rdma_write_imm(p.x, p.b.mr->rkey, p.b.address(), 0x01020304);
  p.local(0, 100);
  CHECK(p.finish().status == IBV_WC_SUCCESS);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.imm_data == 0x01020304);
  CHECK(wc.byte_len == 100);
}

TEST_CASE("atomics by ibv_wr give the old values", "[extended]") {
  Extended p;
  p.b.word() = 40;
  p.begin(1);
  ibv_wr_atomic_fetch_add(p.x, p.b.mr->rkey, p.b.address(), 2);
  p.local(0, 8);
  p.next(2);
  ibv_wr_atomic_cmp_swp(p.x, p.b.mr->rkey, p.b.address(), 42, 7);
  p.local(8, 8);
  CHECK(p.finish().opcode == IBV_WC_FETCH_ADD);
  CHECK(wait(p.a.cq.get()).opcode == IBV_WC_COMP_SWAP);
  CHECK(p.a.word(0) == 40);
  CHECK(p.a.word(8) == 42);
  CHECK(p.b.word() == 7);
}

TEST_CASE("inline data by ibv_wr may change before the work is begun", "[extended]") {
  Extended p;
  std::uint8_t bytes[40];
  std::memset(bytes, 0x5a, sizeof bytes);
  p.begin();
  if (deviates("wr-inline-needs-flag")) p.x->wr_flags |= IBV_SEND_INLINE;
  ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address());
  ibv_wr_set_inline_data(p.x, bytes, sizeof bytes);
  std::memset(bytes, 0, sizeof bytes);
  CHECK(p.finish().status == IBV_WC_SUCCESS);
  CHECK(int{p.b.buffer[0]} == 0x5a);
  CHECK(int{p.b.buffer[39]} == 0x5a);
}

TEST_CASE("a gather list by ibv_wr is one message", "[extended]") {
  Extended p;
  p.a.fill(0, 4000);
  const ibv_sge s[2] = {p.a.sge(0, 10), p.a.sge(1000, 2000)};
  p.begin();
  ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address());
  ibv_wr_set_sge_list(p.x, 2, s);
  CHECK(p.finish().status == IBV_WC_SUCCESS);
  CHECK(p.same(10));
  if (deviates("wr-list-length")) {
    CHECK(p.same(10, 1000, 10));
    CHECK(int{p.b.buffer[20]} == 0);
  } else {
    CHECK(p.same(2000, 1000, 10));
  }
}

TEST_CASE("requests between ibv_wr_start and ibv_wr_complete are done in order", "[extended]") {
  Extended p;
  p.a.fill(0, 64);
  ibv_wr_start(p.x);
  for (std::uint64_t i = 0; i < 8; ++i) {
    p.next(i);
    ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address());
    p.local(i, 1);
  }
  REQUIRE(ibv_wr_complete(p.x) == 0);
  for (std::uint64_t i = 0; i < 8; ++i) CHECK(wait(p.a.cq.get()).wr_id == i);
  CHECK(p.b.buffer[0] == p.a.buffer[7]);
}

TEST_CASE("requests that ibv_wr_abort takes back are not done", "[extended]") {
  Extended p;
  p.a.fill(0, 64);
  p.begin(1);
  ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address());
  p.local(0, 8);
  ibv_wr_abort(p.x);
  p.begin(2);
  ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address(100));
  p.local(0, 8);
  CHECK(p.finish().wr_id == 2);
  CHECK(quiet(p.a.cq.get()));
  CHECK(int{p.b.buffer[0]} == 0);
  CHECK(p.same(8, 0, 100));
}

TEST_CASE("ibv_wr and ibv_post_send may take turns on one queue pair", "[extended]") {
  Extended p;
  p.a.fill(0, 64);
  Wr w = p.write(8);
  for (int i = 0; i < 3; ++i) {
    p.begin();
    ibv_wr_rdma_write(p.x, p.b.mr->rkey, p.b.address(64));
    p.local(0, 8);
    CHECK(p.finish().status == IBV_WC_SUCCESS);
    REQUIRE(post(p.qa.get(), w) == 0);
    CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
  CHECK(p.same(8));
  CHECK(p.same(8, 0, 64));
}
