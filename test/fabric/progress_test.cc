// What a call accepted goes on although the caller never calls again.
#include "test/fabric/rank.h"
#include "test/fabric/shapes.h"

namespace twinpath::test {
namespace {

constexpr std::int64_t kPatience = 10000;  // ms; microseconds are meant
const std::size_t kCounts[] = {1, 2, 3, 8, 15, 16, 17, 31, 32};

std::vector<Exchange> exchanges(std::size_t messages) {
  return {{messages, 1, false}, {messages, 1, true}, {messages, 3, false}, {messages, 8, true}};
}
std::string text(const Exchange& e) {
  return std::to_string(e.messages) + " messages, groups of " + std::to_string(e.group) +
         (e.reversed ? ", last first" : ", in order");
}

TEST_CASE("irecv alone is enough: the sender gets all cells without a further call") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  ShapedWorld world(shape);
  for (const std::size_t messages : kCounts)
    for (const Exchange& e : exchanges(messages)) {
      INFO(shape << ", " << text(e));
      Link link = world.forth();
      REQUIRE(exchange(link, e, kPatience) == "");
    }
}

TEST_CASE("irecv alone is enough: two ranks in one thread, one after the other") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  ShapedWorld world(shape);
  Link forth = world.forth(), back = world.back();
  for (const std::size_t messages : kCounts)
    for (const Exchange& e : exchanges(messages)) {
      INFO(shape << ", " << text(e));
      Receives at_b(*forth.recv, e), at_a(*back.recv, e);
      Sends of_a(*forth.send, e), of_b(*back.send, e);
      REQUIRE(eventually([&] { return of_a.try_next(); }, kPatience));
      REQUIRE(eventually([&] { return of_b.try_next(); }, kPatience));
      REQUIRE(eventually(
          [&] {
            bool done = of_a.test_all();
            done = at_a.test_all() && done;
            done = of_b.test_all() && done;
            return at_b.test_all() && done;
          },
          kPatience));
      CHECK(of_a.failure + of_b.failure + at_a.failure + at_b.failure == "");
      CHECK(at_a.hold_their_bytes());
      CHECK(at_b.hold_their_bytes());
    }
}

TEST_CASE("irecv alone is enough: two ranks in threads of their own") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  ShapedWorld world(shape);
  Link forth = world.forth(), back = world.back();
  Link a{std::move(forth.send), std::move(back.recv)};
  Link b{std::move(back.send), std::move(forth.recv)};
  for (const std::size_t messages : kCounts)
    for (const Exchange& e : exchanges(messages)) {
      INFO(shape << ", " << text(e));
      std::string of_b;
      std::thread thread([&] { of_b = exchange(b, e, kPatience); });
      const std::string of_a = exchange(a, e, kPatience);
      thread.join();
      REQUIRE(of_a == "");
      REQUIRE(of_b == "");
    }
}

// How long the receiver waits for all, when the sender's side does nothing after its isends.
std::int64_t wait_ns(ShapedWorld& world, const Exchange& e) {
  Link link = world.forth();
  Receives receives(*link.recv, e);
  // The cells get there; the sender's first look finds them.
  (void)eventually([&] { return receives.test_all(); }, 5);
  Sends sends(*link.send, e);
  REQUIRE(eventually([&] { return sends.try_next(); }, kPatience));
  const std::int64_t begin = now_ns();
  REQUIRE(eventually([&] { return receives.test_all(); }, kPatience));
  const std::int64_t took = now_ns() - begin;
  CHECK(receives.failure == "");
  CHECK(receives.hold_their_bytes());
  REQUIRE(eventually([&] { return sends.test_all(); }, kPatience));
  CHECK(sends.failure == "");
  return took;
}

TEST_CASE("isend alone is enough: all messages come although the sender's side is silent") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  ShapedWorld world(shape);
  for (const std::size_t messages : {1, 2, 16, 32})
    for (Exchange e : exchanges(messages))
      for (const std::size_t bytes : {64, 5000}) {
        e.sizes = {bytes};
        INFO(shape << ", " << text(e) << " of " << bytes << " bytes");
        std::int64_t best = kPatience * kMillisecond;
        // On a busy machine one may have to wait for a core, not each time.
        for (int i = 0; i < 3 && best >= 50 * kMillisecond; ++i)
          best = std::min(best, wait_ns(world, e));
        REQUIRE(best < 50 * kMillisecond);
      }
}

}  // namespace
}  // namespace twinpath::test
