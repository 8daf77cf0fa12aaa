// What NCCL says of coming operations: how many queues a connection gets, and which messages are
// cut over rails.
#include <limits>

#include "proxy/connect/expected_traffic.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

TrafficHints connecting(bool point_to_point, int connections) {
  return {point_to_point, {1, 8}, {1, connections}};
}
TrafficHints transfer(int peers, int connections) {
  return {true, {peers, peers}, {connections, connections}};
}

TEST_CASE("connections between two ranks share the queues of a collective's connection") {
  ExpectedTraffic e;
  CHECK(e.queues(4) == 4);
  e.set(connecting(true, 1));
  CHECK(e.queues(4) == 4);
  e.set(connecting(true, 2));
  CHECK(e.queues(4) == 2);
  CHECK(e.queues(1) == 1);
  CHECK(e.queues(3) == 2);
  e.set(connecting(true, 32));
  CHECK(e.queues(4) == 1);
  e.set(connecting(true, std::numeric_limits<int>::max()));
  CHECK(e.queues(4) == 1);
  CHECK(e.queues(1) == 1);
  e.set(transfer(2, 2));  // of what goes over connections that are there
  CHECK(e.queues(4) == 1);
  e.set(connecting(false, 32));
  CHECK(e.queues(4) == 4);
  e.set({true, {}, {}});  // it does not know
  CHECK(e.queues(4) == 4);
}

TEST_CASE("messages travel whole while there are twice as many as rails") {
  ExpectedTraffic e;
  CHECK(e.stripe_from(1000, 2) == 1000);
  e.set(transfer(3, 1));
  CHECK(e.stripe_from(1000, 2) == 1000);
  e.set(transfer(2, 2));
  CHECK(e.stripe_from(1000, 2) == 4000);
  CHECK(e.stripe_from(1000, 4) == 1000);
  e.set(transfer(1 << 30, 1 << 30));
  CHECK(e.stripe_from(1000, 4) == 4000);
  e.set(connecting(true, 8));  // says nothing of the transfer
  CHECK(e.stripe_from(1000, 4) == 4000);
  e.set(transfer(1, 1));
  CHECK(e.stripe_from(1000, 2) == 1000);
}

// Queue pairs that both ends of a new connection take.
std::size_t queues_of_new(World& w) {
  Tap::raised.clear();
  Link link = w.connect();
  exchange(link, 5000);
  return Tap::raised.size();
}

TEST_CASE("a connection has the queues that NCCL's hints leave it") {
  Config c = soft_config();
  c.ib_qps_per_connection = 4;
  c.net_hints = GENERATE(true, false);
  World w(c, -1, Tap::on);
  CHECK(queues_of_new(w) == 8);
  for (Session* s : {w.a.get(), w.b.get()}) s->expect(connecting(true, 2));
  CHECK(queues_of_new(w) == (c.net_hints ? 4 : 8));
  // Ends that were told differently agree all the same.
  w.b->expect(connecting(false, 2));
  CHECK(queues_of_new(w) == 8);
}

// Writes that a message takes.
std::size_t writes_of(Link& link, std::size_t bytes) {
  {
    const std::lock_guard hold(Tap::mutex);
    Tap::posted.clear();
  }
  exchange(link, bytes);
  const std::lock_guard hold(Tap::mutex);
  return static_cast<std::size_t>(std::count_if(
      Tap::posted.begin(), Tap::posted.end(),
      [](const Tap::Posted& p) { return p.kind == WrKind::send_data && p.bytes > 100; }));
}

TEST_CASE("a busy transfer sends messages of middling length whole, from the next one on") {
  Config c = soft_config("soft0,soft1,soft2,soft3");
  c.ib_adaptive_routing = 0;
  World w(c, -1, Tap::on);
  Link link = w.connect(w.merge({0, 1}), w.merge({2, 3}));
  constexpr std::size_t kMiddling = 128 * 1024, kLong = 256 * 1024;
  CHECK(writes_of(link, kMiddling) == 2);
  w.a->expect(transfer(4, 2));
  CHECK(writes_of(link, kMiddling) == 1);
  CHECK(writes_of(link, kLong) == 2);
  w.a->expect(transfer(1, 2));
  CHECK(writes_of(link, kMiddling) == 2);
}

}  // namespace
}  // namespace twinpath::test
