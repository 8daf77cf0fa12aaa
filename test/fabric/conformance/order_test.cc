// Order: of data, of completions, and of signalled among unsignalled work (IB vol. 1, 9.5, 10.8).
#include <cerrno>
#include <cstring>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

TEST_CASE("a WRITE is visible when a later SEND has been received", "[order]") {
  Pair p;
  for (unsigned round = 1; round <= 20; ++round) {
    p.a.fill(0, 8000, round);
    REQUIRE(p.b.receive(20000, 8) == 0);
    Wr w = p.write(8000), s = p.send(8);
    w.wr.send_flags = 0;
    REQUIRE(p.post(w) == 0);
    REQUIRE(p.post(s) == 0);
    REQUIRE(wait(p.b.cq.get()).status == IBV_WC_SUCCESS);
    REQUIRE(p.same(8000));
    REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("a WRITE is visible when a later WRITE with immediate has arrived", "[order]") {
  Pair p;
  for (unsigned round = 1; round <= 20; ++round) {
    p.a.fill(0, 8000, round);
    REQUIRE(p.b.receive(0, 0) == 0);
    Wr w = p.write(8000), i = p.request(IBV_WR_RDMA_WRITE_WITH_IMM, 0);
    w.wr.send_flags = 0;
    REQUIRE(p.post(w) == 0);
    REQUIRE(p.post(i) == 0);
    REQUIRE(wait(p.b.cq.get()).status == IBV_WC_SUCCESS);
    REQUIRE(p.same(8000));
    REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("WRITEs to one place leave the last value", "[order]") {
  Pair p;
  for (std::uint8_t i = 1; i <= 30; ++i) {
    p.a.buffer[i] = i;
    Wr w = p.write(1, i);
    REQUIRE(p.post(w) == 0);
  }
  for (int i = 1; i <= 30; ++i) REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(int{p.b.buffer[0]} == 30);
}

TEST_CASE("a READ after a WRITE sees what was written", "[order]") {
  Pair p;
  p.a.fill(0, 5000);
  Wr w = p.write(5000), r = p.request(IBV_WR_RDMA_READ, 5000, 10000);
  w.wr.send_flags = 0;
  REQUIRE(p.post(w) == 0);
  REQUIRE(p.post(r) == 0);
  REQUIRE(wait(p.a.cq.get()).opcode == IBV_WC_RDMA_READ);
  CHECK(std::memcmp(p.a.buffer.data(), p.a.buffer.data() + 10000, 5000) == 0);
}

TEST_CASE("a fenced WRITE waits for the READ before it", "[order]") {
  Pair p;
  p.a.fill(0, 5000, 9);
  p.b.fill(0, 5000, 5);
  // The READ fills what the WRITE sends on: without the fence it could send the old bytes.
  Wr r = p.request(IBV_WR_RDMA_READ, 5000), w = p.write(5000, 0, 10000);
  w.wr.send_flags |= IBV_SEND_FENCE;
  REQUIRE(p.post(r) == 0);
  REQUIRE(p.post(w) == 0);
  REQUIRE(wait(p.a.cq.get()).opcode == IBV_WC_RDMA_READ);
  REQUIRE(wait(p.a.cq.get()).opcode == IBV_WC_RDMA_WRITE);
  CHECK(std::memcmp(p.b.buffer.data(), p.b.buffer.data() + 10000, 5000) == 0);
}

TEST_CASE("a fenced SEND waits for the atomic before it", "[order]") {
  Pair p;
  p.b.word() = 1234;
  REQUIRE(p.b.receive(64, 8) == 0);
  Wr f = p.add(1), s = p.send(8);
  s.wr.send_flags |= IBV_SEND_FENCE;
  REQUIRE(p.post(f) == 0);
  REQUIRE(p.post(s) == 0);
  REQUIRE(wait(p.b.cq.get()).byte_len == 8);
  CHECK(p.b.word(64) == 1234);
}

TEST_CASE("completions of different opcodes come in the order of their posting", "[order]") {
  Pair p;
  REQUIRE(p.b.receive(40000, 64) == 0);
  Wr all[] = {p.write(9000), p.request(IBV_WR_RDMA_READ, 9000, 20000), p.send(8), p.add(1, 40000),
              p.write(1),    p.request(IBV_WR_RDMA_READ, 1, 30000)};
  std::uint64_t id = 0;
  for (Wr& w : all) {
    w.wr.wr_id = id++;
    REQUIRE(p.post(w) == 0);
  }
  for (std::uint64_t i = 0; i < id; ++i) {
    const ibv_wc wc = wait(p.a.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("a list of work requests is done in its order", "[order]") {
  Pair p;
  p.a.fill(0, 64);
  Wr all[4] = {p.write(1, 0), p.write(1, 1), p.write(1, 2), p.write(1, 3)};
  for (std::size_t i = 0; i < 4; ++i) {
    all[i].wr.wr_id = i;
    all[i].wr.sg_list = &all[i].sge;
    if (i + 1 < 4) all[i].wr.next = &all[i + 1].wr;
  }
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(p.a.qp.get(), &all[0].wr, &bad) == 0);
  for (std::uint64_t i = 0; i < 4; ++i) CHECK(wait(p.a.cq.get()).wr_id == i);
  CHECK(p.b.buffer[0] == p.a.buffer[3]);
}

TEST_CASE("receives are consumed in the order of their posting", "[order]") {
  Pair p;
  for (std::uint64_t i = 0; i < 20; ++i) REQUIRE(p.b.receive(64 * i, 64, i) == 0);
  for (std::size_t i = 0; i < 20; ++i) {
    p.a.buffer[i] = static_cast<std::uint8_t>(i + 1);
    Wr w = p.send(1, i);
    REQUIRE(p.post(w) == 0);
  }
  for (std::uint64_t i = 0; i < 20; ++i) {
    CHECK(wait(p.b.cq.get()).wr_id == i);
    CHECK(p.b.buffer[64 * i] == i + 1);
  }
}

TEST_CASE("SENDs and WRITEs with immediate take receives in turn", "[order]") {
  Pair p;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(p.b.receive(1000, 64, i) == 0);
  for (int i = 0; i < 4; ++i) {
    Wr w = p.request(i % 2 == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 8);
    REQUIRE(p.post(w) == 0);
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    const ibv_wc wc = wait(p.b.cq.get());
    CHECK(wc.wr_id == i);
    CHECK(wc.opcode == (i % 2 == 0 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM));
  }
}

TEST_CASE("unsignalled work gives no completion of its own", "[order]") {
  Pair p;
  for (std::uint8_t i = 1; i <= 20; ++i) {
    p.a.buffer[i] = i;
    Wr w = p.write(1, i);
    w.wr.wr_id = i;
    if (i != 20) w.wr.send_flags = 0;
    REQUIRE(p.post(w) == 0);
  }
  CHECK(wait(p.a.cq.get()).wr_id == 20);
  CHECK(int{p.b.buffer[0]} == 20);
  CHECK(quiet(p.a.cq.get()));
}

TEST_CASE("a queue pair made to signal all completes unflagged work", "[order]") {
  Options o;
  o.signal_all = true;
  Pair p(o);
  Wr w = p.write(8);
  w.wr.send_flags = 0;
  CHECK(p.run(w).wr_id == 77);
}

TEST_CASE("a long run through small queues keeps ids and data in order", "[order]") {
  Options o;
  o.cap = {4, 4, 1, 1, 0};
  Pair p(o);
  std::uint64_t posted = 0, done = 0;
  while (done < 300) {
    while (posted < 300 && posted - done < 4) {
      p.a.word(8 * (posted % 4)) = posted;
      Wr w = p.write(8, 8 * (posted % 4), 8 * (posted % 1000));
      w.wr.wr_id = posted++;
      REQUIRE(p.post(w) == 0);
    }
    const ibv_wc wc = wait(p.a.cq.get());
    REQUIRE(wc.status == IBV_WC_SUCCESS);
    REQUIRE(wc.wr_id == done++);
  }
  for (std::uint64_t i = 0; i < 300; ++i) REQUIRE(p.b.word(8 * i) == i);
}

TEST_CASE("two connections between the same devices do not mix", "[order]") {
  Pair p;
  const Qp qa = p.a.make_qp(), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  REQUIRE(p.b.receive(0, 64, 1) == 0);
  REQUIRE(post_receive(qb.get(), p.b.sge(64, 64), 2) == 0);
  Wr w = p.send(8);
  REQUIRE(post(qa.get(), w) == 0);
  const ibv_wc wc = wait(p.b.cq.get());
  CHECK(wc.wr_id == 2);
  CHECK(wc.qp_num == qb->qp_num);
  CHECK(quiet(p.b.cq.get()));
}
