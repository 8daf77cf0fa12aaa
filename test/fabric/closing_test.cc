// A receive comm may be closed while messages for it are on their way: NCCL does so after receives
// whose completion it need not see.  What the sender's isend accepted before still ends well.
#include <atomic>

#include "test/fabric/rank.h"
#include "test/fabric/shapes.h"

namespace twinpath::test {
namespace {

constexpr std::int64_t kLimit = 30000;  // ms

enum class Tested { last, none };

// A closing comm stays for a bounded time, in which the other end's thread must get its turn: on a
// busy machine it may miss it once, but not each time.
template <class F>
std::string best_of_three(F&& attempt) {
  std::string failure;
  for (int i = 0; i < 3; ++i)
    if ((failure = attempt()).empty()) break;
  return failure;
}
std::string failure_of(const Sends& sends, const LogCapture& log) {
  if (!sends.failure.empty()) return sends.failure;
  return log.warnings().empty() ? "" : "a warning: " + log.warnings().front();
}

TEST_CASE("Closing a receive comm after its receives were posted lets accepted sends end") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  const Tested tested = GENERATE(Tested::last, Tested::none);
  const bool optional = GENERATE(false, true);
  ShapedWorld world(shape);
  for (const std::size_t messages : {1, 3, 4, 5, 6, 7, 8, 16, 32}) {
    // Every count meets both sizes, in different shapes.
    const std::size_t bytes = (messages + static_cast<std::size_t>(shape.queues)) % 2 ? 64 : 5000;
    INFO(shape << ", " << messages << " messages of " << bytes << " bytes, "
               << (tested == Tested::last ? "last" : "none") << " tested"
               << (optional ? ", no completions wanted" : ""));
    CHECK(best_of_three([&] {
            LogCapture log;
            Link link = world.forth();
            Receives receives(*link.recv, {messages, 1, false, {bytes}}, optional);
            Sends sends(*link.send, {messages, 1, false, {bytes}});
            REQUIRE(eventually(
                [&] {
                  if (tested == Tested::last) (void)receives.test_last();
                  return sends.try_next();
                },
                kLimit));
            // The buffers stay: they may be written to until the sends have ended.
            receives.forget();
            const std::int64_t begin = now_ns();
            link.recv.reset();
            // Waits for what is there, but not for a peer that is not.
            CHECK(now_ns() - begin < 5 * kSecond);
            REQUIRE(eventually([&] { return sends.test_all(); }, kLimit));
            return failure_of(sends, log);
          }) == "");
  }
}

TEST_CASE("Closing a receive comm lets sends of another thread end") {
  const Shape shape = GENERATE(values<Shape>({{1, 1, false}, {2, 1, false}, {4, 2, true}}));
  ShapedWorld world(shape);
  for (const std::size_t messages : {1, 5, 16, 32}) {
    INFO(shape << ", " << messages << " messages");
    CHECK(best_of_three([&] {
            LogCapture log;
            Link link = world.forth();
            const Exchange e{messages, 1, false, {64, 5000}};
            Receives receives(*link.recv, e);
            Sends sends(*link.send, e);
            std::atomic<bool> accepted{false}, ended{false};
            std::thread thread([&] {
              accepted = eventually([&] { return sends.try_next(); }, kLimit);
              ended = eventually([&] { return sends.test_all(); }, kLimit);
            });
            (void)eventually(
                [&] {
                  (void)receives.test_last();
                  return accepted.load();
                },
                kLimit);
            receives.forget();
            link.recv.reset();
            thread.join();
            CHECK(accepted);
            CHECK(ended);
            return failure_of(sends, log);
          }) == "");
  }
}

TEST_CASE("Closing a receive comm that nobody sends to takes no time worth naming") {
  World world;
  Link link = world.connect();
  Receives receives(*link.recv, {8});
  (void)receives.test_all();
  receives.forget();
  const std::int64_t begin = now_ns();
  link.recv.reset();
  CHECK(now_ns() - begin < kSecond / 2);
}

TEST_CASE("Many comms that close on peers which do nothing share one wait") {
  World world;
  constexpr std::size_t kLinks = 100;
  std::vector<Link> links;
  std::vector<std::unique_ptr<Receives>> receives;
  for (std::size_t i = 0; i < kLinks; ++i) {
    links.push_back(world.connect());
    receives.push_back(std::make_unique<Receives>(*links.back().recv, Exchange{1}));
    (void)receives.back()->test_all();
    receives.back()->forget();
  }
  const std::int64_t begin = now_ns();
  for (Link& link : links) link.recv.reset();
  // 20 ms each would be 2 s; all of them together have 100 ms, and 0.2 ms each.
  CHECK(now_ns() - begin < 3 * kSecond / 2);
}

}  // namespace
}  // namespace twinpath::test
