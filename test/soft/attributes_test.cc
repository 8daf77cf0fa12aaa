// Capacities, attributes and registrations of the soft HCA: what is granted, kept and refused.
#include <sys/mman.h>

#include "plugin/base/page_size.h"
#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

ibv_qp* create(Side& s, ibv_qp_cap cap, ibv_qp_cap* granted = nullptr) {
  ibv_qp_init_attr a{};
  a.send_cq = a.recv_cq = s.cq;
  a.qp_type = IBV_QPT_RC;
  a.cap = cap;
  errno = 0;
  ibv_qp* qp = s.verbs.create_qp(s.pd, &a);
  if (granted != nullptr) *granted = a.cap;
  return qp;
}

ibv_qp_attr query(Side& s) {
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(s.verbs.query_qp(s.qp, &a, ~0, &init) == 0);
  return a;
}

}  // namespace

TEST_CASE("a QP gets what the device says it can have, and no more", "[soft]") {
  Options o;
  Side s(o);
  ibv_device_attr d{};
  REQUIRE(s.verbs.query_device(s.context, &d) == 0);
  CHECK(d.max_qp_wr >= 16384);
  CHECK(d.max_sge >= 16);
  CHECK(d.max_qp_rd_atom >= 16);
  const auto wr = static_cast<std::uint32_t>(d.max_qp_wr);
  const auto sge = static_cast<std::uint32_t>(d.max_sge);
  ibv_qp_cap granted{};
  ibv_qp* qp = create(s, {wr, wr, sge, sge, 512}, &granted);
  REQUIRE(qp != nullptr);
  CHECK(granted.max_send_wr >= wr);
  CHECK(granted.max_recv_sge >= sge);
  CHECK(granted.max_inline_data >= 512);
  CHECK(s.verbs.destroy_qp(qp) == 0);
  ibv_qp_cap bad[] = {{wr + 1, 1, 1, 1, 0},
                      {1, wr + 1, 1, 1, 0},
                      {1, 1, sge + 1, 1, 0},
                      {1, 1, 1, sge + 1, 0},
                      {1, 1, 1, 1, 513}};
  for (const ibv_qp_cap& cap : bad) {
    CHECK(create(s, cap) == nullptr);
    CHECK(errno == EINVAL);
  }
  CHECK(s.verbs.create_cq(s.context, d.max_cqe + 1, nullptr, nullptr, 0) == nullptr);
  CHECK(s.verbs.create_cq(s.context, 0, nullptr, nullptr, 0) == nullptr);
}

TEST_CASE("every attribute is given back as it was set", "[soft]") {
  Pair p;
  ibv_qp_attr a = query(p.a);
  CHECK(a.qp_state == IBV_QPS_RTS);
  CHECK(a.cur_qp_state == IBV_QPS_RTS);
  CHECK(a.path_mtu == IBV_MTU_1024);
  CHECK(a.dest_qp_num == p.b.qp->qp_num);
  CHECK(a.qp_access_flags == p.a.options.qp_access);
  CHECK(a.cap.max_send_wr == 64);
  CHECK(a.cap.max_inline_data == 64);
  CHECK(std::memcmp(&a.ah_attr.grh.dgid, &p.b.gid, sizeof p.b.gid) == 0);
  CHECK(a.ah_attr.grh.sgid_index == 1);
  CHECK(a.port_num == 1);
  CHECK(a.timeout == 14);
  CHECK(a.retry_cnt == 1);
  CHECK(a.rnr_retry == 7);
  CHECK(a.min_rnr_timer == 12);
  CHECK(a.max_rd_atomic == 1);
  CHECK(a.max_dest_rd_atomic == 1);
  ibv_qp_attr set{};
  set.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  set.min_rnr_timer = 20;
  REQUIRE(p.a.verbs.modify_qp(p.a.qp, &set, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER) == 0);
  a = query(p.a);
  CHECK(a.qp_access_flags == IBV_ACCESS_REMOTE_READ);
  CHECK(a.min_rnr_timer == 20);
}

TEST_CASE("attributes out of range or out of place are EINVAL and change nothing", "[soft]") {
  Pair p;
  const auto modify = [&](int mask, auto change) {
    ibv_qp_attr a{};
    change(a);
    return p.a.verbs.modify_qp(p.a.qp, &a, mask);
  };
  CHECK(modify(IBV_QP_MIN_RNR_TIMER, [](auto& a) { a.min_rnr_timer = 32; }) == EINVAL);
  CHECK(modify(IBV_QP_PATH_MTU, [](auto& a) { a.path_mtu = IBV_MTU_512; }) == EINVAL);
  CHECK(modify(IBV_QP_PORT, [](auto& a) { a.port_num = 1; }) == EINVAL);
  CHECK(modify(IBV_QP_CAP, [](auto&) {}) == EINVAL);
  CHECK(modify(IBV_QP_STATE | IBV_QP_CUR_STATE, [](auto& a) {
          a.qp_state = IBV_QPS_RTS;
          a.cur_qp_state = IBV_QPS_SQD;
        }) == EINVAL);
  CHECK(query(p.a).path_mtu == IBV_MTU_1024);
  // On the way up.
  Options o;
  Side s(o);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  CHECK(s.verbs.modify_qp(s.qp, &a, init) == EINVAL);  // port 0
  a.port_num = 1;
  a.pkey_index = 1;
  CHECK(s.verbs.modify_qp(s.qp, &a, init) == EINVAL);
  a.pkey_index = 0;
  CHECK(s.verbs.modify_qp(s.qp, &a, init | IBV_QP_TIMEOUT) == EINVAL);  // not in this transition
  CHECK(s.verbs.modify_qp(s.qp, &a, init) == 0);
}

TEST_CASE("a QP taken back to RESET starts anew", "[soft]") {
  Pair p;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), 1);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_REM_ACCESS_ERR);
  for (int round = 0; round < 3; ++round) {
    for (Side* s : {&p.a, &p.b}) {
      ibv_qp_attr a{};
      REQUIRE(s->verbs.modify_qp(s->qp, &a, IBV_QP_STATE) == 0);
      CHECK(query(*s).dest_qp_num == 0);
      CHECK(s->post_receive(0, 8) == EINVAL);
    }
    p.a.connect(p.b.qp->qp_num, p.b.gid);
    p.b.connect(p.a.qp->qp_num, p.a.gid);
    REQUIRE(p.b.post_receive(0, 64) == 0);
    auto s = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
    REQUIRE(p.a.post(s) == 0);
    CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  }
  while (p.b.next_event(nullptr, 0) != -1) {
  }
}

TEST_CASE("a drained send queue says so and goes on later", "[soft]") {
  Pair p;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_SQD;
  a.en_sqd_async_notify = 1;
  REQUIRE(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
  ibv_async_event e{};
  CHECK(p.a.next_event(&e) == IBV_EVENT_SQ_DRAINED);
  CHECK(e.element.qp == p.a.qp);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.quiet(p.a));
  CHECK(query(p.a).qp_state == IBV_QPS_SQD);
  a = {};
  a.timeout = 10;
  CHECK(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_TIMEOUT) == 0);
  a.qp_state = IBV_QPS_RTS;
  REQUIRE(p.a.verbs.modify_qp(p.a.qp, &a, IBV_QP_STATE) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

TEST_CASE("an MR is addressed by its iova, at either end", "[soft]") {
  Pair p;
  // Elsewhere, but at the same place in a page.
  const std::uint64_t at_a = 0x1000000 + page_offset(p.a.address());
  const std::uint64_t at_b = 0x1000000 + page_offset(p.b.address());
  ibv_mr* near = p.a.verbs.reg_mr_iova2(p.a.pd, p.a.buffer.data(), 4096, at_a, p.a.options.access);
  ibv_mr* far = p.b.verbs.reg_mr_iova2(p.b.pd, p.b.buffer.data(), 4096, at_b, p.b.options.access);
  REQUIRE(near != nullptr);
  REQUIRE(far != nullptr);
  p.a.buffer[100] = 7;
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND);
  if (opcode == IBV_WR_RDMA_READ) p.b.buffer[200] = 9;
  if (opcode == IBV_WR_SEND) {
    ibv_sge s{at_b + 200, 8, far->lkey};
    ibv_recv_wr r{}, *bad = nullptr;
    r.sg_list = &s;
    r.num_sge = 1;
    REQUIRE(ibv_post_recv(p.b.qp, &r, &bad) == 0);
  }
  auto w = p.a.request(opcode, 0, 8, at_b + 200, far->rkey);
  w.sge = {at_a + 100, 8, near->lkey};
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(p.b.buffer[200] == (opcode == IBV_WR_RDMA_READ ? 9 : 7));
  CHECK(p.a.buffer[100] == (opcode == IBV_WR_RDMA_READ ? 9 : 7));
  p.a.verbs.dereg_mr(near);
  p.b.verbs.dereg_mr(far);
}

TEST_CASE("registrations: accepted hints, empty ranges, unmapped memory", "[soft]") {
  Options o;
  Side s(o);
  const auto reg = [&](void* at, std::size_t bytes, unsigned access) {
    errno = 0;
    return s.verbs.reg_mr_iova2(s.pd, at, bytes, reinterpret_cast<std::uint64_t>(at), access);
  };
  ibv_mr* relaxed = reg(s.buffer.data(), 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  REQUIRE(relaxed != nullptr);
  s.verbs.dereg_mr(relaxed);
  CHECK(reg(s.buffer.data(), 0, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EINVAL);
  CHECK(reg(s.buffer.data(), 64, IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(errno == EINVAL);
  CHECK(reg(s.buffer.data(), 64, IBV_ACCESS_ON_DEMAND) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  void* hole = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  REQUIRE(munmap(static_cast<char*>(hole) + 4096, 4096) == 0);
  CHECK(reg(hole, 8192, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EFAULT);
  munmap(hole, 4096);
  void* fixed = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(fixed != MAP_FAILED);
  CHECK(reg(fixed, 4096, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EFAULT);
  ibv_mr* readable = reg(fixed, 4096, IBV_ACCESS_REMOTE_READ);
  REQUIRE(readable != nullptr);
  s.verbs.dereg_mr(readable);
  munmap(fixed, 4096);
}

TEST_CASE("messages of no bytes work with every operation", "[soft]") {
  Pair p;
  REQUIRE(p.b.post_receive(0, 0) == 0);
  for (auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
    auto w = p.a.request(opcode, 0, 0, 0, 0);  // no key is looked at
    w.wr.num_sge = 0;
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  }
  CHECK(p.wait(p.b).byte_len == 0);
}

TEST_CASE("no more READs are outstanding than the QP may have, and all are done", "[soft]") {
  Pair p;  // max_rd_atomic 1
  auto* word = reinterpret_cast<std::uint64_t*>(p.b.buffer.data());
  for (int i = 0; i < 40; ++i) {
    auto w = p.a.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, p.b.address(), p.b.mr->rkey);
    w.wr.wr.atomic.compare_add = 1;
    REQUIRE(p.a.post(w) == 0);
  }
  for (int i = 0; i < 40; ++i) CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(*word == 40);
}

TEST_CASE("a request that no operation can carry is refused when it is posted", "[soft]") {
  Pair p;
  auto w = p.a.request(IBV_WR_SEND_WITH_INV, 0, 8, 0, 0);
  CHECK(p.a.post(w) == EOPNOTSUPP);
  auto big = p.a.request(IBV_WR_RDMA_WRITE, 0, (1u << 30) + 1, p.b.address(), p.b.mr->rkey);
  CHECK(p.a.post(big) == EINVAL);
}

TEST_CASE("finished work holds its place in the send queue until a completion behind it is polled",
          "[soft]") {
  Pair p;
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  const bool signal = GENERATE(true, false);
  for (int i = 0; i < 64; ++i) {
    w.wr.send_flags = signal && i == 10 ? IBV_SEND_SIGNALED : 0;
    REQUIRE(p.a.post(w) == 0);
  }
  w.wr.send_flags = IBV_SEND_SIGNALED;
  CHECK(p.a.post(w) == ENOMEM);
  if (!signal) {
    CHECK(p.quiet(p.a));
    CHECK(p.a.post(w) == ENOMEM);
    return;
  }
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  w.wr.send_flags = 0;
  for (int i = 0; i < 11; ++i) CHECK(p.a.post(w) == 0);
  CHECK(p.a.post(w) == ENOMEM);
}

TEST_CASE("data that arrive before RTS say that the connection is established, once", "[soft]") {
  Options o;
  Side a(o), b(o);
  a.connect(b.qp->qp_num, b.gid);
  REQUIRE(b.to_init() == 0);
  REQUIRE(b.to_rtr(a.qp->qp_num, a.gid) == 0);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(b.post_receive(0, 64) == 0);
    auto w = a.request(IBV_WR_SEND, 0, 8, 0, 0);
    REQUIRE(a.post(w) == 0);
    ibv_wc wc{};
    for (std::int64_t end = now_ns() + kSecond; now_ns() < end && ibv_poll_cq(b.cq, 1, &wc) == 0;) {
    }
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.opcode == IBV_WC_RECV);
  }
  ibv_async_event e{};
  CHECK(b.next_event(&e) == IBV_EVENT_COMM_EST);
  CHECK(e.element.qp == b.qp);
  CHECK(b.next_event(nullptr, 0) == -1);
}
