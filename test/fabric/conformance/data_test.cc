// Data: every opcode, and sizes around the MTU (IB vol. 1, 9.4 and 10.7).
#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

Options roomy() {
  Options o;
  o.bytes = 3 << 20;
  return o;
}

// `bytes` go from a[at] to b[to] by WRITE, and nothing around them changes.
void writes(Pair& p, std::uint32_t bytes, std::size_t at = 0, std::size_t to = 64) {
  p.a.fill(at, bytes);
  p.b.buffer[to - 1] = p.b.buffer[to + bytes] = 0xee;
  const ibv_wc wc = p.run(p.write(bytes, at, to));
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
  CHECK(p.same(bytes, at, to));
  CHECK(int{p.b.buffer[to - 1]} == 0xee);
  CHECK(int{p.b.buffer[to + bytes]} == 0xee);
}

void reads(Pair& p, std::uint32_t bytes, std::size_t at = 64, std::size_t to = 0) {
  p.b.fill(to, bytes);
  p.a.buffer[at - 1] = p.a.buffer[at + bytes] = 0xee;
  const ibv_wc wc = p.run(p.request(IBV_WR_RDMA_READ, bytes, at, to));
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_READ);
  CHECK(p.same(bytes, at, to));
  CHECK(int{p.a.buffer[at - 1]} == 0xee);
  CHECK(int{p.a.buffer[at + bytes]} == 0xee);
}

void sends(Pair& p, std::uint32_t bytes) {
  p.a.fill(0, bytes);
  REQUIRE(p.b.receive(0, bytes) == 0);
  const ibv_wc sent = p.run(p.send(bytes));
  CHECK(sent.status == IBV_WC_SUCCESS);
  CHECK(sent.opcode == IBV_WC_SEND);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RECV);
  CHECK(wc.byte_len == bytes);
  CHECK(wc.wr_id == 55);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) == 0);
  CHECK(p.same(bytes));
}

void writes_with_immediate(Pair& p, std::uint32_t bytes) {
  p.a.fill(0, bytes);
  REQUIRE(p.b.receive(2048, 64, 9) == 0);  // consumed, but not written to
  Wr w = p.request(IBV_WR_RDMA_WRITE_WITH_IMM, bytes);
  w.wr.imm_data = 0x01020304;
  const ibv_wc sent = p.run(w);
  CHECK(sent.status == IBV_WC_SUCCESS);
  CHECK(sent.opcode == IBV_WC_RDMA_WRITE);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.wr_id == 9);
  CHECK(wc.byte_len == bytes);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == 0x01020304);
  CHECK(p.same(bytes));
}

}  // namespace

TEST_CASE("a WRITE of one byte places one byte", "[data]") {
  Pair p;
  writes(p, 1);
}

TEST_CASE("a WRITE of no bytes completes", "[data]") {
  Pair p;
  CHECK(p.run(p.write(0)).status == IBV_WC_SUCCESS);
}

TEST_CASE("a WRITE one byte below the MTU is whole", "[data]") {
  Pair p;
  writes(p, 1023);
}

TEST_CASE("a WRITE of exactly the MTU is whole", "[data]") {
  Pair p;
  writes(p, 1024);
}

TEST_CASE("a WRITE one byte above the MTU is whole", "[data]") {
  Pair p;
  writes(p, 1025);
}

TEST_CASE("a WRITE of 1 MiB is whole", "[data]") {
  Pair p(roomy());
  writes(p, 1 << 20);
}

TEST_CASE("a WRITE between unaligned addresses is whole", "[data]") {
  Pair p;
  for (std::size_t shift : {1u, 3u, 7u}) writes(p, 2500 + static_cast<unsigned>(shift), shift, 71);
}

TEST_CASE("a WRITE completes at the requester only", "[data]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK(quiet(p.b.cq.get()));
}

TEST_CASE("a READ of one byte brings one byte", "[data]") {
  Pair p;
  reads(p, 1);
}

TEST_CASE("a READ of no bytes completes", "[data]") {
  Pair p;
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 0)).status == IBV_WC_SUCCESS);
}

TEST_CASE("a READ around the MTU is whole", "[data]") {
  Pair p;
  for (std::uint32_t bytes : {1023u, 1024u, 1025u}) reads(p, bytes);
}

TEST_CASE("a READ of 1 MiB is whole", "[data]") {
  Pair p(roomy());
  reads(p, 1 << 20);
}

TEST_CASE("a READ between unaligned addresses is whole", "[data]") {
  Pair p;
  reads(p, 2503, 67, 5);
}

TEST_CASE("a READ completes at the requester only", "[data]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  CHECK(p.run(p.request(IBV_WR_RDMA_READ, 8)).status == IBV_WC_SUCCESS);
  CHECK(quiet(p.b.cq.get()));
}

TEST_CASE("a SEND of one byte fills a receive", "[data]") {
  Pair p;
  sends(p, 1);
}

TEST_CASE("a SEND of no bytes consumes a receive", "[data]") {
  Pair p;
  sends(p, 0);
}

TEST_CASE("a SEND around the MTU is whole", "[data]") {
  Pair p;
  for (std::uint32_t bytes : {1023u, 1024u, 1025u}) sends(p, bytes);
}

TEST_CASE("a SEND of 1 MiB is whole", "[data]") {
  Pair p(roomy());
  sends(p, 1 << 20);
}

TEST_CASE("a SEND shorter than its receive reports its own length", "[data]") {
  Pair p;
  p.b.buffer[8] = 0xee;
  REQUIRE(p.b.receive(0, 100) == 0);
  p.a.fill(0, 8);
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).byte_len == 8);
  CHECK(p.same(8));
  CHECK(int{p.b.buffer[8]} == 0xee);
}

TEST_CASE("a SEND with immediate brings data and value", "[data]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  p.a.fill(0, 8);
  Wr w = p.request(IBV_WR_SEND_WITH_IMM, 8);
  w.wr.imm_data = 0xa1b2c3d4;
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.opcode == IBV_WC_RECV);
  CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(wc.imm_data == 0xa1b2c3d4);
  CHECK(wc.byte_len == 8);
  CHECK(p.same(8));
}

TEST_CASE("a receive's completion names the receiving queue pair", "[data]") {
  Pair p;
  REQUIRE(p.b.receive(0, 64) == 0);
  CHECK(p.run(p.send(8)).qp_num == p.a.qp->qp_num);
  CHECK(wait(p.b.cq.get()).qp_num == p.b.qp->qp_num);
}

TEST_CASE("a WRITE with immediate of no bytes consumes a receive", "[data]") {
  Pair p;
  writes_with_immediate(p, 0);
}

TEST_CASE("a WRITE with immediate of no bytes needs no address", "[data]") {
  Pair p;
  REQUIRE(p.b.receive(0, 0) == 0);
  Wr w = p.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0);
  w.wr.wr.rdma = {0, 0};
  CHECK(p.run(w).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_CASE("a WRITE with immediate places its data and reports their length", "[data]") {
  Pair p;
  writes_with_immediate(p, 8);
}

TEST_CASE("a multi-packet WRITE with immediate reports the whole length", "[data]") {
  Pair p;
  writes_with_immediate(p, 2049 - 1);
  REQUIRE(p.b.receive(0, 0) == 0);
  CHECK(p.run(p.request(IBV_WR_RDMA_WRITE_WITH_IMM, 40000)).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).byte_len == 40000);
}

TEST_CASE("a WRITE with immediate leaves its receive's buffer alone", "[data]") {
  Pair p;
  p.b.buffer[2048] = 0xee;
  writes_with_immediate(p, 16);
  CHECK(int{p.b.buffer[2048]} == 0xee);
}

TEST_CASE("both directions of a connection carry data at once", "[data]") {
  Pair p;
  p.a.fill(0, 20000, 3);
  p.b.fill(30000, 20000, 4);
  Wr out = p.write(20000), back;
  back.sge = p.b.sge(30000, 20000);
  back.wr.num_sge = 1;
  back.wr.opcode = IBV_WR_RDMA_WRITE;
  back.wr.send_flags = IBV_SEND_SIGNALED;
  back.wr.wr.rdma = {p.a.address(30000), p.a.mr->rkey};
  REQUIRE(p.post(out) == 0);
  REQUIRE(post(p.b.qp.get(), back) == 0);
  CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(wait(p.b.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(p.same(20000));
  CHECK(p.same(20000, 30000, 30000));
}

TEST_CASE("every path MTU carries the same data", "[data]") {
  for (ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_2048, IBV_MTU_4096}) {
    Options o;
    o.mtu = mtu;
    Pair p(o);
    writes(p, 9000);
    sends(p, 9000);
  }
}
