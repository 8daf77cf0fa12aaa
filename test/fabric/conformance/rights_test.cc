// Bounds, rights and protection domains at the moment of access (IB vol. 1, 9.9.3 and 10.7.2).
#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

Options with_region(unsigned access) {
  Options o;
  o.mr_access = access;
  return o;
}
Options with_queue_pair(unsigned access) {
  Options o;
  o.qp_access = access;
  return o;
}
const unsigned kLocal = IBV_ACCESS_LOCAL_WRITE;

}  // namespace

TEST_CASE("a WRITE up to the last byte of a region is allowed", "[rights]") {
  Pair p;
  p.a.fill(0, 16);
  CHECK(p.run(p.write(16, 0, p.b.buffer.size() - 16)).status == IBV_WC_SUCCESS);
  CHECK(p.same(16, 0, p.b.buffer.size() - 16));
}

TEST_CASE("a WRITE one byte over the end of a region is refused", "[rights]") {
  Pair p;
  CHECK(p.run(p.write(16, 0, p.b.buffer.size() - 15)).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a refused WRITE over the end places no byte", "[rights]") {
  Pair p;
  p.a.fill(0, 16);
  CHECK(p.run(p.write(16, 0, p.b.buffer.size() - 15)).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(int{p.b.buffer[p.b.buffer.size() - 15]} == 0);
}

TEST_CASE("a WRITE one byte before the start of a region is refused", "[rights]") {
  Pair p;
  Wr w = p.write(16);
  --w.wr.wr.rdma.remote_addr;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a WRITE whose address wraps around is refused", "[rights]") {
  Pair p;
  Wr w = p.write(16);
  w.wr.wr.rdma.remote_addr = ~std::uint64_t{0} - 7;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a WRITE with a key that was never given out is refused", "[rights]") {
  Pair p;
  Wr w = p.write(16);
  w.wr.wr.rdma.rkey ^= 0x55;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a READ over the end of a region is refused", "[rights]") {
  Pair p;
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 16, 0, p.b.buffer.size() - 15)).status ==
        IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a multi-packet WRITE over the end of a region is refused", "[rights]") {
  Pair p;
  CHECK(p.run(p.write(8192, 0, p.b.buffer.size() - 8191)).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("an atomic beyond the end of a region is refused", "[rights]") {
  Pair p;
  if (p.without_atomics()) return;
  CHECK(p.run(p.add(1, 0, p.b.buffer.size())).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a WRITE of no bytes needs no valid key", "[rights]") {
  Pair p;
  Wr w = p.write(0);
  w.wr.wr.rdma = {0, 0};
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
}

TEST_CASE("a WRITE into a region without remote write is refused", "[rights]") {
  Pair p({}, with_region(kLocal | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  CHECK(p.run(p.write(8)).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a READ from a region without remote read is refused", "[rights]") {
  Pair p({}, with_region(kLocal | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 8)).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("an atomic on a region without remote atomics is refused", "[rights]") {
  Pair p({}, with_region(kLocal | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (p.without_atomics()) return;
  CHECK(p.run(p.add(1)).status == IBV_WC_REM_ACCESS_ERR);
  CHECK(p.b.word() == 0);
}

TEST_CASE("a WRITE to a queue pair without remote write is refused", "[rights]") {
  Pair p({}, with_queue_pair(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  p.a.fill(0, 8);
  CHECK(p.run(p.write(8)).status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(int{p.b.buffer[0]} == 0);
}

TEST_CASE("a READ from a queue pair without remote read is refused", "[rights]") {
  Pair p({}, with_queue_pair(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 8)).status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("an atomic on a queue pair without remote atomics is refused", "[rights]") {
  Pair p({}, with_queue_pair(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (p.without_atomics()) return;
  CHECK(p.run(p.add(1)).status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(p.b.word() == 0);
}

TEST_CASE("a queue pair's rights can be widened while it is connected", "[rights]") {
  Pair p({}, with_queue_pair(IBV_ACCESS_REMOTE_READ));
  ibv_qp_attr a{};
  a.qp_access_flags = kRemoteRights;
  REQUIRE(modify(p.b.qp.get(), a, IBV_QP_ACCESS_FLAGS) == 0);
  p.a.fill(0, 8);
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK(p.same(8));
}

TEST_CASE("a remote key of another PD is refused", "[rights]") {
  Pair p;
  const Pd other(ibv_alloc_pd(p.b.context.get()));
  const Mr mr(ibv_reg_mr(other.get(), p.b.buffer.data(), 4096, p.b.all_rights));
  REQUIRE(mr != nullptr);
  Wr w = p.write(8);
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK(p.run(w).status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a local key of another PD is refused", "[rights]") {
  Pair p;
  const Pd other(ibv_alloc_pd(p.a.context.get()));
  const Mr mr(ibv_reg_mr(other.get(), p.a.buffer.data(), 4096, p.a.all_rights));
  REQUIRE(mr != nullptr);
  Wr w = p.write(8);
  w.sge.lkey = mr->lkey;
  CHECK(p.run(w).status == bad_lkey_status());
}

TEST_CASE("a local SGE over the end of its region is refused", "[rights]") {
  Pair p;
  CHECK(p.run(p.write(16, p.a.buffer.size() - 15)).status == IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("a local SGE before the start of its region is refused", "[rights]") {
  Pair p;
  Wr w = p.write(16);
  --w.sge.addr;
  CHECK(p.run(w).status == IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("a region without any right is a valid source", "[rights]") {
  Pair p(with_region(0), {});
  p.a.fill(0, 64);
  CHECK(p.run(p.write(64)).status == IBV_WC_SUCCESS);
  CHECK(p.same(64));
}

TEST_CASE("a READ into a region without local write is refused", "[rights]") {
  Pair p(with_region(0), {});
  p.b.fill(0, 64);
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 64)).status == IBV_WC_LOC_PROT_ERR);
  CHECK(int{p.a.buffer[0]} == 0);
}

TEST_CASE("an atomic's old value needs a region with local write", "[rights]") {
  Pair p(with_region(0), {});
  if (p.without_atomics()) return;
  CHECK(p.run(p.add(1)).status == IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("a receive into a region without local write is an error at both ends", "[rights]") {
  Pair p({}, with_region(0));
  REQUIRE(p.b.receive(0, 64) == 0);
  p.a.fill(0, 8);
  CHECK(p.run(p.send(8)).status == IBV_WC_REM_OP_ERR);
  CHECK(wait(p.b.cq.get()).status == bad_receive_status());
  CHECK(int{p.b.buffer[0]} == 0);
}

TEST_CASE("a receive with a key that was never given out is an error at both ends", "[rights]") {
  Pair p;
  ibv_sge s = p.b.sge(0, 64);
  s.lkey ^= 0x5500;
  REQUIRE(post_receive(p.b.qp.get(), s, 1) == 0);
  CHECK(p.run(p.send(8)).status == IBV_WC_REM_OP_ERR);
  CHECK(wait(p.b.cq.get()).status == bad_receive_status());
}
