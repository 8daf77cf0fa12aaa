// Completion channels: which completion wakes a sleeper (IB vol. 1, 11.4, Request Completion
// Notification).
#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "test/fabric/conformance/endpoint.h"

using namespace twinpath::conformance;

namespace {

Options with_channel() {
  Options o;
  o.channel = true;
  return o;
}
// The CQ that the channel's next event names, acknowledged; null when none comes.
ibv_cq* event_of(const Endpoint& e, milliseconds time = kPatience, void** context = nullptr) {
  if (!readable(e.channel->fd, time)) return nullptr;
  ibv_cq* cq = nullptr;
  void* own = nullptr;
  REQUIRE(ibv_get_cq_event(e.channel.get(), &cq, &own) == 0);
  ibv_ack_cq_events(cq, 1);
  if (context != nullptr) *context = own;
  return cq;
}
int arm(const Endpoint& e, bool solicited = false) {
  return ibv_req_notify_cq(e.cq.get(), solicited ? 1 : 0);
}
// What completes at the far end, too.
constexpr ibv_wr_opcode kReceived[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                       IBV_WR_RDMA_WRITE_WITH_IMM};

}  // namespace

TEST_CASE("a completion on an armed CQ makes its channel readable", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  CHECK_FALSE(readable(p.a.channel->fd, kQuiet));
  Wr w = p.write(8);
  REQUIRE(p.post(w) == 0);
  CHECK(event_of(p.a) == p.a.cq.get());
  CHECK(wait(p.a.cq.get()).wr_id == 77);
}

TEST_CASE("whatever a requester asked for, its completion wakes it", "[channel]") {
  Pair p(with_channel());
  REQUIRE(p.b.receive(0, 64) == 0);
  for (Wr w : {p.send(8), p.request(IBV_WR_RDMA_READ, 8), p.add(1)}) {
    REQUIRE(arm(p.a) == 0);
    REQUIRE(p.post(w) == 0);
    CHECK(event_of(p.a) == p.a.cq.get());
    CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("a completion event brings the CQ's context", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  Wr w = p.write(8);
  REQUIRE(p.post(w) == 0);
  void* own = nullptr;
  REQUIRE(event_of(p.a, kPatience, &own) == p.a.cq.get());
  CHECK(own == &p.a);
}

TEST_CASE("a CQ that is not armed wakes nobody", "[channel]") {
  Pair p(with_channel());
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK_FALSE(readable(p.a.channel->fd, kQuiet));
}

TEST_CASE("one arming gives one event, however many completions follow", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  for (int i = 0; i < 3; ++i) {
    Wr w = p.write(8);
    REQUIRE(p.post(w) == 0);
  }
  for (int i = 0; i < 3; ++i) CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  CHECK(event_of(p.a) == p.a.cq.get());
  CHECK_FALSE(readable(p.a.channel->fd, kQuiet));
}

TEST_CASE("a CQ armed again wakes again", "[channel]") {
  Pair p(with_channel());
  for (int i = 0; i < 3; ++i) {
    REQUIRE(arm(p.a) == 0);
    Wr w = p.write(8);
    REQUIRE(p.post(w) == 0);
    CHECK(event_of(p.a) == p.a.cq.get());
    CHECK(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  }
}

TEST_CASE("arming twice gives one event", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  REQUIRE(arm(p.a) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  CHECK(event_of(p.a) == p.a.cq.get());
  CHECK_FALSE(readable(p.a.channel->fd, kQuiet));
}

TEST_CASE("a completion from before the arming wakes nobody", "[channel]") {
  Pair p(with_channel());
  Wr w = p.write(8);
  REQUIRE(p.post(w) == 0);
  REQUIRE(p.run(w).status == IBV_WC_SUCCESS);
  REQUIRE(wait(p.a.cq.get()).status == IBV_WC_SUCCESS);
  REQUIRE(arm(p.a) == 0);
  CHECK_FALSE(readable(p.a.channel->fd, kQuiet));
}

TEST_CASE("a receive wakes the receiver's channel", "[channel]") {
  Pair p(with_channel());
  REQUIRE(p.b.receive(0, 64) == 0);
  REQUIRE(arm(p.b) == 0);
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  CHECK(event_of(p.b) == p.b.cq.get());
  CHECK_FALSE(readable(p.a.channel->fd, milliseconds(0)));
}

TEST_CASE("a CQ armed for solicited completions sleeps through others", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.b, true) == 0);
  for (const ibv_wr_opcode opcode : kReceived) {
    REQUIRE(p.b.receive(0, 64) == 0);
    CHECK(p.run(p.request(opcode, 8)).status == IBV_WC_SUCCESS);
    CHECK(wait(p.b.cq.get()).status == IBV_WC_SUCCESS);
    CHECK_FALSE(readable(p.b.channel->fd, kQuiet));
  }
}

TEST_CASE("solicited messages wake a CQ armed for solicited completions", "[channel]") {
  Pair p(with_channel());
  for (const ibv_wr_opcode opcode : kReceived) {
    REQUIRE(p.b.receive(0, 64) == 0);
    REQUIRE(arm(p.b, true) == 0);
    Wr w = p.request(opcode, 8);
    w.wr.send_flags |= IBV_SEND_SOLICITED;
    CHECK(p.run(w).status == IBV_WC_SUCCESS);
    CHECK(event_of(p.b) == p.b.cq.get());
  }
}

TEST_CASE("arming for solicited completions does not weaken an arming for all", "[channel]") {
  Pair p(with_channel());
  REQUIRE(p.b.receive(0, 64) == 0);
  REQUIRE(arm(p.b) == 0);
  // Until the register has been looked at, also on a busy machine.
  if (deviates("arming-overtaken")) {
    CHECK_FALSE(readable(p.b.channel->fd, milliseconds(1000)));
    CHECK(quiet(p.b.cq.get()));
  }
  REQUIRE(arm(p.b, true) == 0);
  CHECK(p.run(p.send(8)).status == IBV_WC_SUCCESS);
  CHECK(event_of(p.b) == p.b.cq.get());
}

TEST_CASE("a receive in error wakes a CQ armed for solicited completions", "[channel]") {
  Pair p(with_channel());
  REQUIRE(p.b.receive(0, 4) == 0);
  REQUIRE(arm(p.b, true) == 0);
  CHECK(p.run(p.send(8)).status == too_long_status());
  if (deviates("error-not-solicited")) {
    CHECK(event_of(p.b, kQuiet) == nullptr);
  } else {
    CHECK(event_of(p.b) == p.b.cq.get());
  }
  CHECK(wait(p.b.cq.get()).status == too_short_status());
}

TEST_CASE("two CQs share a channel and each event names its own", "[channel]") {
  Pair p(with_channel());
  const Cq other(ibv_create_cq(p.a.context.get(), 16, &p.b, p.a.channel.get(), 0));
  REQUIRE(other != nullptr);
  ibv_qp_init_attr i = p.a.qp_attributes();
  i.send_cq = i.recv_cq = other.get();
  const Qp qa = p.a.make_qp(i), qb = p.b.make_qp();
  connect(p.a, qa.get(), p.b, qb.get());
  REQUIRE(ibv_req_notify_cq(other.get(), 0) == 0);
  REQUIRE(arm(p.a) == 0);
  Wr w = p.write(8);
  REQUIRE(post(qa.get(), w) == 0);
  void* own = nullptr;
  CHECK(event_of(p.a, kPatience, &own) == other.get());
  CHECK(own == &p.b);
  REQUIRE(p.post(w) == 0);
  CHECK(event_of(p.a, kPatience, &own) == p.a.cq.get());
  CHECK(own == &p.a);
}

TEST_CASE("a channel without events answers EAGAIN when it must not block", "[channel]") {
  Endpoint e(0, with_channel());
  REQUIRE(::fcntl(e.channel->fd, F_SETFL, ::fcntl(e.channel->fd, F_GETFL) | O_NONBLOCK) == 0);
  ibv_cq* cq = nullptr;
  void* own = nullptr;
  errno = 0;
  CHECK(ibv_get_cq_event(e.channel.get(), &cq, &own) == -1);
  CHECK(errno == EAGAIN);
}

TEST_CASE("a channel blocks its reader until a completion comes", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  std::atomic<ibv_cq*> got{nullptr};
  std::thread sleeper([&] {
    ibv_cq* cq = nullptr;
    void* own = nullptr;
    if (ibv_get_cq_event(p.a.channel.get(), &cq, &own) == 0) ibv_ack_cq_events(cq, 1);
    got = cq;
  });
  std::this_thread::sleep_for(kQuiet);
  const bool early = got.load() != nullptr;
  Wr w = p.write(8);
  const int rc = p.post(w);
  const auto end = Clock::now() + kPatience;
  while (got.load() == nullptr && Clock::now() < end) std::this_thread::yield();
  const bool woken = got.load() == p.a.cq.get();
  woken ? sleeper.join() : sleeper.detach();
  CHECK(rc == 0);
  CHECK_FALSE(early);
  REQUIRE(woken);
}

TEST_CASE("a channel that a CQ uses is busy", "[channel]") {
  Endpoint e(0, with_channel());
  CHECK(ibv_destroy_comp_channel(e.channel.get()) == EBUSY);
}

TEST_CASE("destroying a CQ waits until its events are acknowledged", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  REQUIRE(readable(p.a.channel->fd, kPatience));
  ibv_cq* cq = nullptr;
  void* own = nullptr;
  REQUIRE(ibv_get_cq_event(p.a.channel.get(), &cq, &own) == 0);
  REQUIRE(cq == p.a.cq.get());
  p.a.qp.reset();
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&, raw = p.a.cq.release()] {
    (void)ibv_destroy_cq(raw);
    destroyed = true;
  });
  std::this_thread::sleep_for(kQuiet);
  const bool early = destroyed.load();
  if (!early) ibv_ack_cq_events(cq, 1);
  destroyer.join();
  CHECK_FALSE(early);
}

TEST_CASE("destroying a CQ takes its unread event out of the channel", "[channel]") {
  Pair p(with_channel());
  REQUIRE(arm(p.a) == 0);
  CHECK(p.run(p.write(8)).status == IBV_WC_SUCCESS);
  REQUIRE(readable(p.a.channel->fd, kPatience));
  p.a.qp.reset();
  CHECK(ibv_destroy_cq(p.a.cq.release()) == 0);
  CHECK_FALSE(readable(p.a.channel->fd, milliseconds(0)));
}
