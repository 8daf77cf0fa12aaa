// Completion queues: sizes, polling, order, overflow, life.
#include <cerrno>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

int max_cqe(const Endpoint& e) {
  ibv_device_attr a{};
  REQUIRE(ibv_query_device(e.context.get(), &a) == 0);
  return a.max_cqe;
}

// Posts `n` small writes with the ids 0, 1, ... and waits until the last has reached the peer.
void write_n(Pair& p, int n) {
  p.a.buffer[0] = 7;
  p.b.buffer.assign(p.b.buffer.size(), 0);
  for (int i = 0; i < n; ++i) {
    Wr w = p.write(1, 0, static_cast<std::size_t>(i));
    w.wr.wr_id = static_cast<std::uint64_t>(i);
    REQUIRE(p.post(w) == 0);
  }
  const volatile std::uint8_t* last = &p.b.buffer[static_cast<std::size_t>(n - 1)];
  const auto end = Clock::now() + kPatience;
  while (*last != 7 && Clock::now() < end) {
  }
  REQUIRE(*last == 7);
}

}  // namespace

TEST_CASE("a CQ has at least the depth that was asked for", "[cq]") {
  Endpoint e;
  for (int depth : {1, 2, 63, 64, 65, 1000}) {
    const Cq cq = e.make_cq(depth);
    REQUIRE(cq != nullptr);
    CHECK(cq->cqe >= depth);
  }
}

TEST_CASE("a CQ of the device's greatest depth can be made", "[cq]") {
  Endpoint e;
  const Cq cq = e.make_cq(max_cqe(e));
  REQUIRE(cq != nullptr);
  CHECK(cq->cqe >= max_cqe(e));
}

TEST_CASE("a CQ of depth 0 is refused", "[cq]") {
  Endpoint e;
  errno = 0;
  CHECK(e.make_cq(0) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("a CQ deeper than the device allows is refused", "[cq]") {
  Endpoint e;
  errno = 0;
  CHECK(e.make_cq(max_cqe(e) + 1) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("a CQ on a completion vector that is not there is refused", "[cq]") {
  Endpoint e;
  errno = 0;
  const int after = e.context->num_comp_vectors;
  const Cq cq(ibv_create_cq(e.context.get(), 16, nullptr, nullptr, after));
  CHECK(cq == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("an empty CQ gives no completion", "[cq]") {
  Endpoint e;
  ibv_wc wc[4];
  CHECK(ibv_poll_cq(e.cq.get(), 4, wc) == 0);
}

TEST_CASE("polling for no entries leaves the completions", "[cq]") {
  Pair p;
  Wr w = p.write(8);
  REQUIRE(p.post(w) == 0);
  for (int i = 0; i < 100; ++i) CHECK(ibv_poll_cq(p.a.cq.get(), 0, nullptr) == 0);
  CHECK(wait(p.a.cq.get()).wr_id == 77);
}

TEST_CASE("a poll takes no more completions than it has room for", "[cq]") {
  Pair p;
  write_n(p, 10);
  std::uint64_t next = 0;
  const auto end = Clock::now() + kPatience;
  while (next < 10 && Clock::now() < end) {
    ibv_wc wc[4];
    wc[3].wr_id = 1234;
    const int n = ibv_poll_cq(p.a.cq.get(), 3, wc);
    REQUIRE(n >= 0);
    REQUIRE(n <= 3);
    for (int i = 0; i < n; ++i) CHECK(wc[i].wr_id == next++);
    CHECK(wc[3].wr_id == 1234);
  }
  CHECK(next == 10);
}

TEST_CASE("a completion is taken once", "[cq]") {
  Pair p;
  CHECK(p.run(p.write(8)).wr_id == 77);
  CHECK(quiet(p.a.cq.get()));
}

TEST_CASE("a completion names its queue pair", "[cq]") {
  Pair p;
  const Qp qa = p.a.make_qp(), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  Wr w = p.write(8);
  CHECK(p.run(w).qp_num == p.a.qp->qp_num);
  REQUIRE(post(qa.get(), w) == 0);
  CHECK(wait(p.a.cq.get()).qp_num == qa->qp_num);
}

TEST_CASE("sends and receives can complete on CQs of their own", "[cq]") {
  Pair p;
  const Cq sends = p.a.make_cq(), receives = p.a.make_cq();
  ibv_qp_init_attr i = p.a.qp_attributes();
  i.send_cq = sends.get();
  i.recv_cq = receives.get();
  const Qp qa = p.a.make_qp(i), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  REQUIRE(post_receive(qa.get(), p.a.sge(1000, 8), 5) == 0);
  Wr out = p.write(8);
  REQUIRE(post(qa.get(), out) == 0);
  CHECK(wait(sends.get()).opcode == IBV_WC_RDMA_WRITE);
  Wr in = p.send(8);
  in.sge = p.b.sge(0, 8);
  REQUIRE(post(qb.get(), in) == 0);
  CHECK(wait(receives.get()).wr_id == 5);
  CHECK(quiet(sends.get()));
}

TEST_CASE("growing a CQ keeps what is in it", "[cq]") {
  Pair p;
  write_n(p, 10);
  REQUIRE(ibv_resize_cq(p.a.cq.get(), 500) == 0);
  CHECK(p.a.cq->cqe >= 500);
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(wait(p.a.cq.get()).wr_id == i);
}

TEST_CASE("shrinking a CQ keeps what is in it", "[cq]") {
  Pair p;
  write_n(p, 5);
  REQUIRE(ibv_resize_cq(p.a.cq.get(), 16) == 0);
  CHECK(p.a.cq->cqe >= 16);
  for (std::uint64_t i = 0; i < 5; ++i) CHECK(wait(p.a.cq.get()).wr_id == i);
}

TEST_CASE("a CQ cannot be resized below what it holds", "[cq]") {
  Pair p;
  write_n(p, 20);  // 9 may be rounded up to 16
  for (const int depth : {0, 9}) CHECK(ibv_resize_cq(p.a.cq.get(), depth) == EINVAL);
  CHECK(p.a.cq->cqe >= p.a.options.cqe);
  for (std::uint64_t i = 0; i < 20; ++i) CHECK(wait(p.a.cq.get()).wr_id == i);
}

TEST_CASE("a CQ cannot be resized beyond the device's greatest depth", "[cq]") {
  Endpoint e;
  CHECK(ibv_resize_cq(e.cq.get(), max_cqe(e) + 1) == EINVAL);
  CHECK(e.cq->cqe >= e.options.cqe);
}

TEST_CASE("a CQ that a queue pair uses is busy", "[cq]") {
  Endpoint e;
  CHECK(ibv_destroy_cq(e.cq.get()) == EBUSY);
  e.qp.reset();
  CHECK(ibv_destroy_cq(e.cq.release()) == 0);
}

TEST_CASE("a CQ that overflows raises a CQ error event", "[cq]") {
  Options small;
  small.cqe = 2;
  Pair p(small, {});
  const int n = p.a.cq->cqe + 2;
  REQUIRE(n <= 32);
  for (int i = 0; i < n; ++i) {
    Wr w = p.write(8);
    REQUIRE(p.post(w) == 0);
  }
  const auto event = wait_event(p.a.context.get(), IBV_EVENT_CQ_ERR);
  REQUIRE(event);
  CHECK(event->element.cq == p.a.cq.get());
}

TEST_CASE("a CQ of depth one passes any number of completions one by one", "[cq]") {
  Options small;
  small.cqe = 1;
  Pair p(small, {});
  for (int i = 0; i < 50; ++i) REQUIRE(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK_FALSE(readable(p.a.context->async_fd, milliseconds(0)));
}

TEST_CASE("completions outlive later work on the same queue", "[cq]") {
  Pair p;
  write_n(p, 3);
  CHECK(wait(p.a.cq.get()).wr_id == 0);
  write_n(p, 3);
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(wait(p.a.cq.get()).wr_id);
  CHECK(ids == std::vector<std::uint64_t>{1, 2, 0, 1, 2});
}
