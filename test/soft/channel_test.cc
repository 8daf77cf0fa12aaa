// Completion channels of the soft HCA, by programs that wait and do not poll.
#include <fcntl.h>

#include <cerrno>
#include <thread>

#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

Options with_channel() {
  Options o;
  o.channel = true;
  return o;
}

// A SEND from a to b, which has a receive for it.
void send_one(Pair& p, unsigned flags = 0, ibv_wr_opcode opcode = IBV_WR_SEND) {
  REQUIRE(p.b.post_receive(0, 64) == 0);
  auto w = p.a.request(opcode, 0, 8, p.b.address(), p.b.mr->rkey);
  w.wr.send_flags |= flags;
  REQUIRE(p.a.post(w) == 0);
}

}  // namespace

TEST_CASE("an armed CQ gives one event for its next completion, without polling", "[soft]") {
  Pair p(with_channel());
  REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
  CHECK_FALSE(p.b.channel_event(20));
  send_one(p);
  CHECK(p.b.channel_event());
  send_one(p);
  CHECK_FALSE(p.b.channel_event(20));  // once for each arming
  CHECK(p.wait(p.b).opcode == IBV_WC_RECV);
  CHECK(p.wait(p.b).opcode == IBV_WC_RECV);
}

TEST_CASE("a CQ that is not armed gives no event", "[soft]") {
  Pair p(with_channel());
  send_one(p);
  CHECK_FALSE(p.b.channel_event(20));
  CHECK(p.wait(p.b).status == IBV_WC_SUCCESS);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  // What is there when the CQ is armed gives none either: the user polls after arming.
  send_one(p);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(p.quiet(p.a));
  REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
  CHECK_FALSE(p.b.channel_event(20));
}

TEST_CASE("send completions give events to a requester that waits", "[soft]") {
  Pair p(with_channel());
  REQUIRE(ibv_req_notify_cq(p.a.cq, 0) == 0);
  const auto opcode =
      GENERATE(IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD);
  send_one(p, 0, opcode);
  CHECK(p.a.channel_event());
}

TEST_CASE("armed for solicited completions, only those and failures give events", "[soft]") {
  Pair p(with_channel());
  REQUIRE(ibv_req_notify_cq(p.b.cq, 1) == 0);
  const auto opcode = GENERATE(IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM);
  send_one(p, 0, opcode);
  CHECK_FALSE(p.b.channel_event(20));
  SECTION("a solicited message") {
    send_one(p, IBV_SEND_SOLICITED, opcode);
    CHECK(p.b.channel_event());
  }
  SECTION("a flushed receive") {
    REQUIRE(p.b.post_receive(0, 64) == 0);
    REQUIRE(p.b.to_error() == 0);
    CHECK(p.b.channel_event());
  }
  SECTION("arming for all is not weakened by arming for solicited") {
    REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
    REQUIRE(ibv_req_notify_cq(p.b.cq, 1) == 0);
    send_one(p, 0, opcode);
    CHECK(p.b.channel_event());
  }
}

TEST_CASE("get_cq_event blocks, unless the descriptor is non-blocking", "[soft]") {
  Pair p(with_channel());
  REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  SECTION("blocking") {
    int posted = -1;
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      auto w = p.a.request(IBV_WR_SEND, 0, 8, 0, 0);
      posted = p.a.post(w);
    });
    REQUIRE(p.b.post_receive(0, 64) == 0);
    const std::int64_t begin = now_ns();
    CHECK(soft::get_cq_event(p.b.channel, &cq, &user) == 0);
    CHECK(now_ns() - begin > 10 * kMillisecond);
    sender.join();
    CHECK(posted == 0);
    soft::ack_cq_events(cq, 1);
  }
  SECTION("non-blocking") {
    const int fd = p.b.channel->fd;
    REQUIRE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
    CHECK(soft::get_cq_event(p.b.channel, &cq, &user) == -1);
    CHECK(errno == EAGAIN);
  }
}

TEST_CASE("a channel serves several CQs and is busy while they live", "[soft]") {
  Options o = with_channel();
  Side s(o);
  ibv_cq* other = s.verbs.create_cq(s.context, 4, nullptr, s.channel, 0);
  REQUIRE(other != nullptr);
  CHECK(s.channel->refcnt == 2);
  CHECK(soft::destroy_comp_channel(s.channel) == EBUSY);
  CHECK(s.verbs.destroy_cq(other) == 0);
  CHECK(s.verbs.create_cq(s.context, 4, nullptr, s.channel, 99) == nullptr);  // vector
  CHECK(errno == EINVAL);
}

TEST_CASE("destroying a CQ takes unread events back and waits for unacknowledged ones", "[soft]") {
  Pair p(with_channel());
  REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
  send_one(p);
  pollfd fd{p.b.channel->fd, POLLIN, 0};
  REQUIRE(::poll(&fd, 1, 1000) == 1);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  const bool read_it = GENERATE(true, false);
  if (read_it) REQUIRE(soft::get_cq_event(p.b.channel, &cq, &user) == 0);
  CHECK(p.b.verbs.destroy_cq(p.b.cq) == EBUSY);
  p.b.verbs.destroy_qp(p.b.qp);
  p.b.qp = nullptr;
  std::atomic<bool> gone{false};
  int destroyed = -1;
  std::thread destroyer([&] {
    destroyed = p.b.verbs.destroy_cq(p.b.cq);
    gone = true;
  });
  if (read_it) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK_FALSE(gone);
    soft::ack_cq_events(cq, 1);
  }
  destroyer.join();
  CHECK(destroyed == 0);
  CHECK(::poll(&fd, 1, 0) == 0);
  p.b.cq = p.b.verbs.create_cq(p.b.context, 4, nullptr, nullptr, 0);
}

TEST_CASE("an overflowing CQ raises one event that names it", "[soft]") {
  Options o;
  o.cqe = 3;
  Pair p(o);
  for (int i = 0; i < 8; ++i) {
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
    REQUIRE(p.a.post(w) == 0);
  }
  ibv_async_event e{};
  CHECK(p.a.next_event(&e) == IBV_EVENT_CQ_ERR);
  CHECK(e.element.cq == p.a.cq);
  CHECK(p.a.next_event(nullptr, 20) == -1);
  ibv_wc wc{};
  CHECK(ibv_poll_cq(p.a.cq, 1, &wc) < 0);
}

TEST_CASE("a CQ may grow and shrink around what it holds", "[soft]") {
  Options o;
  o.cqe = 4;
  Pair p(o);
  for (int i = 0; i < 3; ++i) {
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
    w.wr.wr_id = static_cast<std::uint64_t>(i);
    REQUIRE(p.a.post(w) == 0);
  }
  CHECK(soft::resize_cq(p.a.cq, 2) == EINVAL);
  CHECK(soft::resize_cq(p.a.cq, 0) == EINVAL);
  CHECK(soft::resize_cq(p.a.cq, 1 << 30) == EINVAL);
  CHECK(p.a.cq->cqe == 4);
  const int size = GENERATE(3, 100);
  REQUIRE(soft::resize_cq(p.a.cq, size) == 0);
  CHECK(p.a.cq->cqe == size);
  for (std::uint64_t i = 0; i < 3; ++i) CHECK(p.wait(p.a).wr_id == i);
  for (int i = 0; i < size; ++i) {
    auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
    if (i < 60) REQUIRE(p.a.post(w) == 0);
  }
  for (int i = 0; i < std::min(size, 60); ++i) CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}
