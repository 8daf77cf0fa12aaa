// Lists: data gathered from several places, scattered over several, or inline (IB vol. 1, 10.7).
#include <cstring>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

TEST_CASE("a gather list is one message", "[data]") {
  Pair p;
  if (p.without_sges(p.a, 3)) return;
  p.a.fill(0, 4000);
  ibv_sge s[3] = {p.a.sge(0, 3), p.a.sge(1000, 1500), p.a.sge(10, 20)};
  Wr w = p.write(1);
  w.wr.sg_list = s;
  w.wr.num_sge = 3;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(3, 0, 0));
  CHECK(p.same(1500, 1000, 3));
  CHECK(p.same(20, 10, 1503));
}

TEST_CASE("an SGE of no bytes within a gather list adds nothing", "[data]") {
  Pair p;
  if (p.without_sges(p.a, 3)) return;
  p.a.fill(0, 64);
  ibv_sge s[3] = {p.a.sge(0, 4), p.a.sge(32, 0), p.a.sge(4, 4)};
  Wr w = p.write(1);
  w.wr.sg_list = s;
  w.wr.num_sge = 3;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(8));
  CHECK(int{p.b.buffer[8]} == 0);
}

TEST_CASE("a gather list may join regions with different keys", "[data]") {
  Pair p;
  if (p.without_sges(p.a, 2)) return;
  const Mr other = p.a.make_mr(0, 4096, 4096);
  p.a.fill(0, 8192);
  ibv_sge s[2] = {p.a.sge(0, 5), {p.a.address(4096), 7, other->lkey}};
  Wr w = p.write(1);
  w.wr.sg_list = s;
  w.wr.num_sge = 2;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(5, 0, 0));
  CHECK(p.same(7, 4096, 5));
}

TEST_CASE("a READ is scattered over its list", "[data]") {
  Pair p;
  if (p.without_sges(p.a, 3)) return;
  p.b.fill(0, 3000);
  ibv_sge s[3] = {p.a.sge(100, 10), p.a.sge(5000, 2000), p.a.sge(300, 50)};
  Wr w = p.request(IBV_WR_RDMA_READ, 1);
  w.wr.sg_list = s;
  w.wr.num_sge = 3;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(p.same(10, 100, 0));
  CHECK(p.same(2000, 5000, 10));
  CHECK(p.same(50, 300, 2010));
}

TEST_CASE("a SEND is scattered over the receive's list", "[data]") {
  Pair p;
  if (p.without_sges(p.b, 3)) return;
  p.a.fill(0, 3000);
  ibv_sge s[3] = {p.b.sge(100, 10), p.b.sge(5000, 2000), p.b.sge(300, 990)};
  ibv_recv_wr r{}, *bad = nullptr;
  r.sg_list = s;
  r.num_sge = 3;
  REQUIRE(ibv_post_recv(p.b.qp.get(), &r, &bad) == 0);
  CHECK(p.run(p.send(3000)).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).byte_len == 3000);
  CHECK(p.same(10, 0, 100));
  CHECK(p.same(2000, 10, 5000));
  CHECK(p.same(990, 2010, 300));
}

TEST_CASE("inline data may change as soon as the post returns", "[data]") {
  Pair p;
  p.a.buffer[0] = 9;
  Wr w = p.write(1);
  w.wr.send_flags |= IBV_SEND_INLINE;
  REQUIRE(p.post(w) == 0);
  p.a.buffer[0] = 1;
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  if (!deviates("inline-ignored")) CHECK(int{p.b.buffer[0]} == 9);
}

TEST_CASE("inline data need no local key", "[data]") {
  Pair p;
  std::uint8_t bytes[32];
  std::memset(bytes, 0x5a, sizeof bytes);
  Wr w = p.write(1);
  w.sge = {reinterpret_cast<std::uint64_t>(bytes), sizeof bytes, 0xdead};
  w.wr.send_flags |= IBV_SEND_INLINE;
  const bool taken = !deviates("inline-ignored");
  CHECK(p.run(w).status == (taken ? IBV_WC_SUCCESS : bad_lkey_status()));
  CHECK((std::memcmp(p.b.buffer.data(), bytes, sizeof bytes) == 0) == taken);
}

TEST_CASE("inline data are gathered", "[data]") {
  Pair p;
  if (p.without_sges(p.a, 2)) return;
  p.a.fill(0, 64);
  REQUIRE(p.b.receive(0, 64) == 0);
  ibv_sge s[2] = {p.a.sge(0, 20), p.a.sge(20, 20)};
  Wr w = p.send(1);
  w.wr.sg_list = s;
  w.wr.num_sge = 2;
  w.wr.send_flags |= IBV_SEND_INLINE;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).byte_len == 40);
  CHECK(p.same(40));
}
