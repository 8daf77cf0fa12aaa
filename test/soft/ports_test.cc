// Ports of the soft HCA going down and up.
#include "test/soft/pair.h"

using namespace twinpath;
using namespace twinpath::test;

namespace {

ibv_port_state state_of(Side& s, std::uint8_t port = 1) {
  ibv_port_attr a{};
  REQUIRE(s.verbs.query_port(s.context, port, &a) == 0);
  return a.state;
}

struct PortDown {
  Side& side;
  explicit PortDown(Side& s) : side(s) { CHECK(soft::set_port_state(s.context, 1, false) == 0); }
  ~PortDown() { (void)soft::set_port_state(side.context, 1, true); }
};

Config two_devices() {
  Config c;
  c.soft_hcas = "left,ports=2,right";
  return c;
}

}  // namespace

TEST_CASE("a port that goes down and up is told to every context of its device", "[soft]") {
  Pair p({}, two_devices());  // two contexts of the first device
  int n = 0;
  ibv_device** list = p.a.verbs.get_device_list(&n);
  REQUIRE(n == 2);
  ibv_context* elsewhere = p.a.verbs.open_device(list[1]);
  p.a.verbs.free_device_list(list);
  REQUIRE(soft::set_port_state(p.a.context, 2, false) == 0);
  REQUIRE(soft::set_port_state(p.a.context, 2, false) == 0);  // no change, no event
  CHECK(state_of(p.b, 2) == IBV_PORT_DOWN);
  CHECK(state_of(p.b, 1) == IBV_PORT_ACTIVE);
  for (Side* s : {&p.a, &p.b}) {
    ibv_async_event e{};
    CHECK(s->next_event(&e) == IBV_EVENT_PORT_ERR);
    CHECK(e.element.port_num == 2);
  }
  REQUIRE(soft::set_port_state(p.b.context, 2, true) == 0);
  for (Side* s : {&p.a, &p.b}) {
    CHECK(s->next_event() == IBV_EVENT_PORT_ACTIVE);
    CHECK(s->next_event(nullptr, 0) == -1);
  }
  pollfd fd{elsewhere->async_fd, POLLIN, 0};
  CHECK(::poll(&fd, 1, 0) == 0);
  p.a.verbs.close_device(elsewhere);
  CHECK(soft::set_port_state(p.a.context, 3, false) == EINVAL);
  CHECK(soft::set_port_state(p.a.context, 0, false) == EINVAL);
}

TEST_CASE("a port's new LID is told to every context, and what it cannot have is refused",
          "[soft]") {
  Config c;
  c.soft_hcas = "one,link=ib,ports=2,another,link=ib,ethernet";
  Pair p({}, c);
  const auto lid_of = [](Side& s, std::uint8_t port) {
    ibv_port_attr a{};
    REQUIRE(s.verbs.query_port(s.context, port, &a) == 0);
    return a.lid;
  };
  const std::uint16_t one = lid_of(p.a, 1), two = lid_of(p.a, 2);
  const auto moved = static_cast<std::uint16_t>(one + 3);
  REQUIRE(soft::set_port_lid(p.a.context, 1, moved) == 0);
  for (Side* s : {&p.a, &p.b}) {
    ibv_async_event e{};
    CHECK(s->next_event(&e) == IBV_EVENT_LID_CHANGE);
    CHECK(e.element.port_num == 1);
    CHECK(s->next_event(nullptr, 0) == -1);
    CHECK(lid_of(*s, 1) == moved);
    CHECK(lid_of(*s, 2) == two);
  }
  for (const int wrong : {0, one - 1, one + 8, int{two}, 0xffff})
    CHECK(soft::set_port_lid(p.a.context, 1, static_cast<std::uint16_t>(wrong)) == EINVAL);
  CHECK(soft::set_port_lid(p.a.context, 3, one) == EINVAL);
  CHECK(soft::set_port_lid(p.a.context, 2, one) == 0);  // nobody's any more
  CHECK(soft::set_port_lid(p.a.context, 1, one) == EINVAL);
  int n = 0;
  ibv_device** list = p.a.verbs.get_device_list(&n);
  REQUIRE(n == 3);
  ibv_context* const ethernet = p.a.verbs.open_device(list[2]);
  p.a.verbs.free_device_list(list);
  CHECK(soft::set_port_lid(ethernet, 1, static_cast<std::uint16_t>(one + 16)) == EINVAL);
  p.a.verbs.close_device(ethernet);
}

TEST_CASE("ports that are told apart by their GIDs take what is sent to any LID", "[soft]") {
  Config c;
  c.soft_hcas = GENERATE("one", "one,link=ib");
  Options o;
  o.dlid = 0x77;
  Pair p(o, c);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 64, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
}

TEST_CASE("work posted while the port is down runs into the retry limit", "[soft]") {
  Pair p;  // timeout 14, 1 retry: 134 ms
  PortDown down(p.a);
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND);
  REQUIRE(p.b.post_receive(0, 64) == 0);
  auto w = p.a.request(opcode, 0, 8, p.b.address(), p.b.mr->rkey);
  const std::int64_t begin = now_ns();
  REQUIRE(p.a.post(w) == 0);
  CHECK(p.wait(p.a).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(now_ns() - begin > 100 * kMillisecond);
}

TEST_CASE("a peer that has gone is given up also where the port comes and goes", "[soft]") {
  Pair p;  // 134 ms, as above
  ibv_qp_attr gone{};
  gone.qp_state = IBV_QPS_ERR;
  REQUIRE(p.b.verbs.modify_qp(p.b.qp, &gone, IBV_QP_STATE) == 0);
  auto w = p.a.request(IBV_WR_RDMA_WRITE, 0, 8, p.b.address(), p.b.mr->rkey);
  REQUIRE(p.a.post(w) == 0);
  ibv_wc wc{};
  for (std::int64_t end = now_ns() + 5 * kSecond; wc.wr_id == 0 && now_ns() < end;) {
    {
      PortDown down(p.a);
      (void)::poll(nullptr, 0, 20);
    }
    (void)::poll(nullptr, 0, 40);
    (void)ibv_poll_cq(p.a.cq, 1, &wc);
  }
  CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
  CHECK(wc.wr_id == 77);
}

TEST_CASE("a port that comes back in time loses nothing", "[soft]") {
  Options o;
  o.timeout = 18;
  o.retry_cnt = 7;
  Pair p(o);
  REQUIRE(p.b.post_receive(0, 100000) == 0);
  for (std::size_t i = 0; i < 100000; ++i) p.a.buffer[i] = static_cast<std::uint8_t>(i % 249);
  {
    PortDown down(p.a);
    auto w = p.a.request(IBV_WR_SEND, 0, 100000, 0, 0);
    REQUIRE(p.a.post(w) == 0);
    CHECK(p.quiet(p.a, 50));
  }
  CHECK(p.wait(p.b).byte_len == 100000);
  CHECK(p.wait(p.a).status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(p.a.buffer.data(), p.b.buffer.data(), 100000) == 0);
}

TEST_CASE("a QP that is connected on a port that is down works when it comes up", "[soft]") {
  Options o;
  o.timeout = 18;
  Side a(o), b(o);
  {
    PortDown down(a);
    a.connect(b.qp->qp_num, b.gid);
    b.connect(a.qp->qp_num, a.gid);
    auto w = a.request(IBV_WR_RDMA_WRITE, 0, 8, b.address(), b.mr->rkey);
    REQUIRE(a.post(w) == 0);
    ibv_wc wc{};
    CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
  }
  ibv_wc wc{};
  for (std::int64_t end = now_ns() + kSecond; now_ns() < end && ibv_poll_cq(a.cq, 1, &wc) == 0;) {
  }
  CHECK(wc.wr_id == 77);
  CHECK(wc.status == IBV_WC_SUCCESS);
}
