// The parts of a queue pair, each by itself: its two queues, what it sees of its link, its clock.
#include "plugin/fabric/soft/queues.h"

#include "plugin/fabric/soft/qp_link.h"
#include "plugin/fabric/soft/retry_clock.h"
#include "test/support/catch.h"

namespace twinpath::soft {
namespace {

SendQueue send_queue(std::uint32_t size) {
  SendQueue q;
  ibv_qp_cap cap{};
  cap.max_send_wr = size;
  cap.max_send_sge = 3;
  cap.max_inline_data = 32;
  REQUIRE(q.allocate(cap));
  return q;
}

void complete(SendQueue& q, std::uint64_t completion) {
  q.entry(q.head).completion = completion;
  q.exec = q.sent = ++q.head;
}

ReceiveQueue receive_queue(std::uint32_t size) {
  ReceiveQueue q;
  REQUIRE(q.allocate(size, 2));
  return q;
}

void push(ReceiveQueue& q, std::uint64_t id) {
  const ibv_sge list[2] = {{id, 1, 0}, {id + 1, 2, 0}};
  q.push({id, 2}, list);
}

TEST_CASE("send queue: an entry is free when a completion behind it has been polled", "[soft]") {
  SendQueue q = send_queue(3);
  CHECK(q.is_empty());
  q.tail = 3;
  CHECK_FALSE(q.has_room());
  complete(q, kNoCompletion);
  complete(q, 7);
  complete(q, 8);
  CHECK(q.is_empty());
  q.take_back(7);  // 0 to 6 are polled
  CHECK(q.free == 0);
  CHECK_FALSE(q.has_room());
  q.take_back(8);
  CHECK(q.free == 2);  // with it the one before, which has none
  CHECK(q.has_room());
  q.tail = 5;
  CHECK_FALSE(q.has_room());
  q.take_back(100);
  CHECK(q.free == 3);
  complete(q, kNoCompletion);
  q.take_back(100);
  CHECK(q.free == 3);  // nothing says that it is done
}

TEST_CASE("send queue: drained is what has begun nothing that waits", "[soft]") {
  SendQueue q = send_queue(4);
  CHECK(q.is_drained());
  q.tail = 2;
  CHECK(q.is_drained());
  q.entry(0).offset = 1;
  CHECK_FALSE(q.is_drained());  // a part of its packets
  q.exec = 1;
  CHECK_FALSE(q.is_drained());  // waits for its acknowledgement
  q.head = 1;
  CHECK(q.is_drained());
}

TEST_CASE("send queue: each entry has memory of its own, by turns", "[soft]") {
  SendQueue q = send_queue(2);
  SendEntry &a = q.entry(0), &b = q.entry(1);
  CHECK(&q.entry(2) == &a);
  CHECK(q.sges_of(b) - q.sges_of(a) == 3);
  CHECK(q.inline_of(b) - q.inline_of(a) == 32);
  CHECK(q.jobs_of(b) - q.jobs_of(a) == 3);
  CHECK(q.relay_of(a) == nullptr);
  b.length = 100;
  std::uint8_t* const relay = q.make_relay(b);
  REQUIRE(relay != nullptr);
  CHECK(q.relay_of(b) == relay);
  CHECK(q.relay_of(a) == nullptr);
  q.end_relay(b);
  CHECK(q.relay_of(b) == nullptr);
  REQUIRE(q.make_relay(a) != nullptr);
  q.head = q.sent = q.exec = q.tail = q.free = 5;
  q.reset();
  CHECK(q.relay_of(a) == nullptr);
  CHECK((q.head | q.sent | q.exec | q.tail | q.free) == 0);
}

TEST_CASE(
    "receive queue: receives leave in order with their SGEs, over its end and in another size",
    "[soft]") {
  ReceiveQueue q = receive_queue(3);
  for (std::uint64_t id : {10, 20, 30}) push(q, id);
  CHECK(q.count() == 3);
  q.head += 2;
  push(q, 40);
  push(q, 50);
  const std::uint32_t size = GENERATE(3u, 4u, 7u);
  REQUIRE(q.resize(size));
  CHECK(q.entries.size == size);
  CHECK(q.tail == 5);  // counted on
  for (std::uint64_t id : {30, 40, 50}) {
    REQUIRE_FALSE(q.is_empty());
    CHECK(q.first().wr_id == id);
    CHECK(q.first().num_sge == 2);
    CHECK(q.first_sges()[0].addr == id);
    CHECK(q.first_sges()[1].addr == id + 1);
    ++q.head;
  }
  CHECK(q.is_empty());
  q.push({60, 0}, nullptr);
  CHECK(q.first().wr_id == 60);
}

struct Ends {
  std::shared_ptr<Link> memory = std::move(Link::create_local()).take();
  QpLink a, b;
  Ends() {
    a.join(memory, 0, 1);
    b.join(memory, 1, 0);
  }
  // As links.cc, when it has filled in what `ready` promises.
  void open() {
    a.show(EndState::ready);
    b.show(EndState::ready);
    a.see(*memory->far(1));
    b.see(*memory->far(0));
  }
  static EndState state(const LinkEnd* end) { return static_cast<EndState>(end->state.load()); }
};

TEST_CASE("link of a queue pair: what one end writes the other reads", "[soft]") {
  Ends e;
  CHECK(e.a.far() == nullptr);
  e.open();
  CHECK(e.a.theirs == e.b.mine);
  CHECK(e.b.theirs == e.a.mine);
  CHECK(e.a.out_ring == e.b.in_ring);
  CHECK(e.b.out_ring == e.a.in_ring);
  CHECK(e.a.their_bell == e.b.my_bell);
  CHECK(e.b.their_bell == e.a.my_bell);
  CHECK(e.a.out_claim == e.b.in_claim);
  CHECK(e.b.out_claim == e.a.in_claim);
}

TEST_CASE("link of a queue pair: without a carrier nobody is there, and nothing is forgotten",
          "[soft]") {
  Ends e;
  e.open();
  e.a.set_carrier(false);
  CHECK(e.a.theirs == nullptr);
  CHECK(e.a.far() == e.b.mine);
  CHECK(Ends::state(e.b.theirs) == EndState::unset);
  e.a.set_carrier(false);  // again
  CHECK(e.a.far() == e.b.mine);
  e.a.set_carrier(true);
  CHECK(e.a.theirs == e.b.mine);
  CHECK(Ends::state(e.b.theirs) == EndState::ready);
  e.a.set_carrier(true);
  CHECK(e.a.theirs == e.b.mine);
  // An error is one with a carrier and without.
  e.a.show(EndState::error);
  e.a.set_carrier(false);
  e.a.set_carrier(true);
  CHECK(Ends::state(e.b.theirs) == EndState::error);
  QpLink none;
  none.set_carrier(false);
  CHECK(none.far() == nullptr);
}

TEST_CASE("link of a queue pair: the other end sees that it is left", "[soft]") {
  Ends e;
  e.open();
  e.a.unreachable = e.a.heard = e.a.pull_offered = true;
  e.a.leave();
  CHECK(Ends::state(e.b.theirs) == EndState::closed);
  CHECK(e.a.mine == nullptr);
  CHECK(e.a.far() == nullptr);
  CHECK(e.a.memory == nullptr);
  CHECK_FALSE((e.a.unreachable || e.a.heard || e.a.pull_offered));
  CHECK(e.memory.use_count() == 2);  // ours, and the other end's
  QpLink none;
  none.leave();
  CHECK(none.mine == nullptr);
}

TEST_CASE("retry clock: only a peer that does nothing is waited for", "[soft]") {
  RetryClock c;
  CHECK(c.waited(5, false, false, 1000) == 0);  // the first look
  CHECK(c.waited(5, false, false, 1300) == 300);
  CHECK(c.waited(6, false, false, 1400) == 0);
  CHECK(c.waited(6, true, false, 1500) == 0);
  CHECK(c.waited(6, true, false, 1600) == 100);
  CHECK(c.waited(6, true, true, 1700) == 0);
  CHECK(c.waited(6, true, false, 1750) == 50);
  c.stop();
  CHECK(c.waited(6, true, false, 2000) == 0);
  CHECK(c.waited(6, true, false, 2001) == 1);
}

}  // namespace
}  // namespace twinpath::soft
