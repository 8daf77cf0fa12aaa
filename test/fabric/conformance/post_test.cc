// Posting: what is refused at once, with which errno and bad_wr (IB vol. 1, 10.10.2.1).
#include <sys/mman.h>

#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

ibv_qp_cap capacity(ibv_qp* qp) {
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(qp, &a, IBV_QP_CAP, &init) == 0);
  return a.cap;
}

}  // namespace

TEST_CASE("a receive cannot be posted in RESET", "[post]") {
  Endpoint e;
  CHECK(e.receive(0, 64) == posting_error(EINVAL));
}

TEST_CASE("a receive posted in INIT serves the connected queue pair", "[post]") {
  Endpoint a(0), b(1);
  REQUIRE(b.init(b.qp.get()) == 0);
  REQUIRE(b.receive(0, 64, 12) == 0);
  REQUIRE(a.init(a.qp.get()) == 0);
  REQUIRE(b.rtr(b.qp.get(), a.qp->qp_num, a) == 0);
  REQUIRE(a.rtr(a.qp.get(), b.qp->qp_num, b) == 0);
  REQUIRE(a.rts(a.qp.get()) == 0);
  Wr w;
  w.wr.opcode = IBV_WR_SEND;
  w.wr.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(post(a.qp.get(), w) == 0);
  CHECK(wait(b.cq.get()).wr_id == 12);
}

TEST_CASE("a send cannot be posted in RESET", "[post]") {
  Endpoint e;
  Wr w;
  w.wr.opcode = IBV_WR_SEND;
  CHECK(post(e.qp.get(), w) == send_refusal());
}

TEST_CASE("a send cannot be posted in INIT", "[post]") {
  Endpoint e;
  REQUIRE(e.init(e.qp.get()) == 0);
  Wr w;
  w.wr.opcode = IBV_WR_SEND;
  CHECK(post(e.qp.get(), w) == send_refusal());
}

TEST_CASE("a send cannot be posted in RTR", "[post]") {
  Endpoint e;
  REQUIRE(e.init(e.qp.get()) == 0);
  REQUIRE(e.rtr(e.qp.get(), e.qp->qp_num, e) == 0);
  Wr w;
  w.wr.opcode = IBV_WR_SEND;
  CHECK(post(e.qp.get(), w) == send_refusal());
}

TEST_CASE("more send SGEs than the queue pair has are refused", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_send_sge + 1;
  std::vector<ibv_sge> s(n, p.a.sge(0, 1));
  Wr w = p.write(1);
  w.wr.sg_list = s.data();
  w.wr.num_sge = static_cast<int>(n);
  CHECK(p.post(w) == send_refusal());
}

TEST_CASE("as many send SGEs as the queue pair has are taken", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_send_sge;
  std::vector<ibv_sge> s;
  for (std::size_t i = 0; i < n; ++i) s.push_back(p.a.sge(i, 1));
  p.a.fill(0, n);
  Wr w = p.write(1);
  w.wr.sg_list = s.data();
  w.wr.num_sge = static_cast<int>(n);
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(n));
}

TEST_CASE("more receive SGEs than the queue pair has are refused", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.b.qp.get()).max_recv_sge + 1;
  std::vector<ibv_sge> s(n, p.b.sge(0, 1));
  ibv_recv_wr r{}, *bad = nullptr;
  r.sg_list = s.data();
  r.num_sge = static_cast<int>(n);
  CHECK(ibv_post_recv(p.b.qp.get(), &r, &bad) == posting_error(EINVAL));
  CHECK(bad == &r);
}

TEST_CASE("inline data longer than the queue pair takes are refused", "[post]") {
  Pair p;
  Wr w = p.write(capacity(p.a.qp.get()).max_inline_data + 1);
  w.wr.send_flags |= IBV_SEND_INLINE;
  CHECK(p.post(w) == (deviates("inline-ignored") ? 0 : send_refusal()));
}

TEST_CASE("inline data as long as the queue pair takes are sent", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_inline_data;
  REQUIRE(n >= 64);
  p.a.fill(0, n);
  Wr w = p.write(n);
  w.wr.send_flags |= IBV_SEND_INLINE;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(n));
}

TEST_CASE("an opcode that RC does not have is refused", "[post]") {
  Pair p;
  Wr w = p.write(8);
  w.wr.opcode = IBV_WR_TSO;
  const int rc = p.post(w);
  if (rc == 0) {
    CHECK(wait(p.a.cq.get()).status == IBV_WC_LOC_QP_OP_ERR);
  } else {
    CHECK((rc == posting_error(EINVAL) || rc == posting_error(EOPNOTSUPP)));
  }
}

TEST_CASE("a refused post names the request and does those before it", "[post]") {
  Pair p;
  p.a.fill(0, 64);
  Wr all[3] = {p.write(8), p.write(8, 8, 8), p.write(8, 16, 16)};
  for (std::size_t i = 0; i < 3; ++i) all[i].wr.sg_list = &all[i].sge;
  all[0].wr.next = &all[1].wr;
  all[1].wr.next = &all[2].wr;
  std::vector<ibv_sge> too_many(capacity(p.a.qp.get()).max_send_sge + 1, p.a.sge(8, 1));
  all[1].wr.sg_list = too_many.data();
  all[1].wr.num_sge = static_cast<int>(too_many.size());
  ibv_send_wr* bad = nullptr;
  CHECK(ibv_post_send(p.a.qp.get(), &all[0].wr, &bad) == send_refusal());
  CHECK(bad == &all[1].wr);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(quiet(p.a.cq.get()));
  CHECK(p.same(8));
  CHECK(int{p.b.buffer[8]} == 0);
  CHECK(int{p.b.buffer[16]} == 0);
}

TEST_CASE("a full send queue refuses with ENOMEM", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_send_wr;
  Wr w = p.send(8);  // nothing receives them: they stay in the queue
  std::uint32_t posted = 0;
  while (posted <= 2 * n && p.post(w) == 0) ++posted;
  CHECK(posted >= 32);
  CHECK(posted <= n);
  CHECK(p.post(w) == posting_error(ENOMEM));
}

TEST_CASE("a full send queue has room again after completions", "[post]") {
  Pair p;
  Wr w = p.send(0);
  std::uint32_t posted = 0;
  while (posted <= 4096 && p.post(w) == 0) ++posted;
  REQUIRE(posted < 4096);
  for (int i = 0; i < 16; ++i) REQUIRE(p.b.receive(0, 0) == 0);
  for (int i = 0; i < 16; ++i) CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(p.post(w) == 0);
}

TEST_CASE("finished unsignalled work holds its place in the send queue", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_send_wr;
  const bool forgiving = deviates("unsignalled-frees-queue");
  Wr w = p.write(8);
  w.wr.send_flags = 0;
  std::uint32_t posted = 0;
  const auto end = Clock::now() + (forgiving ? kPatience : 10 * kQuiet);
  while (posted <= 3 * n && Clock::now() < end) posted += p.post(w) == 0 ? 1 : 0;
  if (forgiving) {
    CHECK(posted > 3 * n);
  } else {
    CHECK(posted <= n);
  }
}

TEST_CASE("a completion gives back its place and those before it, once polled", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.a.qp.get()).max_send_wr;
  if (deviates("unsignalled-frees-queue")) return;
  Wr w = p.write(8);
  for (std::uint32_t i = 0; i < n; ++i) {
    w.wr.send_flags = i == 10 ? IBV_SEND_SIGNALED : 0;
    REQUIRE(p.post(w) == 0);
  }
  CHECK(p.post(w) == posting_error(ENOMEM));
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  for (int i = 0; i <= 10; ++i) CHECK(p.post(w) == 0);
  CHECK(p.post(w) == posting_error(ENOMEM));
}

TEST_CASE("a full receive queue refuses with ENOMEM", "[post]") {
  Pair p;
  const std::uint32_t n = capacity(p.b.qp.get()).max_recv_wr;
  std::uint32_t posted = 0;
  while (posted <= 2 * n && p.b.receive(0, 0) == 0) ++posted;
  CHECK(posted >= 32);
  CHECK(posted <= n);
  CHECK(p.b.receive(0, 0) == posting_error(ENOMEM));
}

TEST_CASE("a list of receives is taken in one call", "[post]") {
  Pair p;
  ibv_recv_wr r[3] = {}, *bad = nullptr;
  ibv_sge s = p.b.sge(0, 64);
  for (int i = 0; i < 3; ++i) {
    r[i].wr_id = static_cast<std::uint64_t>(i);
    r[i].sg_list = &s;
    r[i].num_sge = 1;
    r[i].next = i < 2 ? &r[i + 1] : nullptr;
  }
  REQUIRE(ibv_post_recv(p.b.qp.get(), r, &bad) == 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
    CHECK(wait(p.b.cq.get()).wr_id == i);
  }
}

TEST_CASE("a message longer than the port's maximum is refused", "[post]") {
  Pair p;
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(p.a.context.get(), kPort, &port) == 0);
  // None is shown, or no SGE can be longer.
  if (deviates("no-message-size") || port.max_msg_sz == ~std::uint32_t{0}) return;
  const std::size_t bytes = std::size_t{port.max_msg_sz} + 1;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(at != MAP_FAILED);
  {
    const Mr from(ibv_reg_mr(p.a.pd.get(), at, bytes, p.a.all_rights));
    REQUIRE(from != nullptr);
    Wr w = p.write(1);
    w.sge = {reinterpret_cast<std::uint64_t>(at), static_cast<std::uint32_t>(bytes), from->lkey};
    w.wr.wr.rdma = {0, 0};  // never reached by a device that keeps its maximum
    const int rc = p.post(w);
    if (deviates("message-size-not-enforced")) {
      CHECK(rc == 0);
      CHECK(wait(p.a.cq.get()).status == IBV_WC_REM_ACCESS_ERR);
    } else if (rc == 0) {
      CHECK(wait(p.a.cq.get()).status == IBV_WC_LOC_LEN_ERR);
    } else {
      CHECK(rc == posting_error(EINVAL));
    }
  }
  ::munmap(at, bytes);
}
