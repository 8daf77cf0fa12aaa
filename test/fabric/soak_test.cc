// Everything at once for as long as TWINPATH_SOAK_SECONDS says: several connections of one
// communicator in both directions, random shapes, groups, tags, sizes and missing completions.
#include <memory>
#include <thread>
#include <utility>

#include "test/fabric/shapes.h"
#include "test/fabric/shuffle.h"
#include "test/fabric/traffic.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

struct Round {
  Shape shape;
  int connections = 1;  // each way
  bool threads = false, overtake = false;
  std::vector<Mix> mixes;
};

Round random_round(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<Shape> shapes = all_shapes();
  Round r;
  r.shape = shapes[below(shapes.size())];
  r.connections = static_cast<int>(1 + below(3));
  r.threads = below(2) == 0;
  r.overtake = below(2) == 0;
  for (int i = 0; i < 2 * r.connections; ++i) {
    Mix m;
    m.seed = random();
    m.most_in_group = static_cast<int>(1 + below(kMaxRecvs));
    m.in_order = below(4) == 0;
    m.usual = std::size_t{64} << below(8);
    m.large = 256 * 1024 >> below(8);
    m.large_one_in = static_cast<int>(4 + below(60));
    m.optional_one_in = static_cast<int>(below(4));
    // Memory for every message that may be open: few of them where they are long.
    m.groups_open = m.most_bytes() > 16 * 1024 ? 4 : 1 + below(kMaxRequests);
    m.groups = m.most_bytes() > 16 * 1024 ? 50 : 400;
    r.mixes.push_back(m);
  }
  return r;
}

// Connections of a round both ways, and what goes over them.
struct Stage {
  explicit Stage(const Round& round) : world(round.shape, round.overtake ? Shuffle::on : nullptr) {
    for (const Mix& mix : round.mixes) {
      const bool forth = links.size() % 2 == 0;
      links.push_back(forth ? world.forth() : world.back());
      traffic.push_back(std::make_unique<Traffic>(*links.back().send, *links.back().recv, mix));
      Traffic& t = *traffic.back();
      (forth ? at_a : at_b).push_back(&t.sender);
      (forth ? at_b : at_a).push_back(&t.receiver);
    }
  }
  ShapedWorld world;
  std::vector<Link> links;
  std::vector<std::unique_ptr<Traffic>> traffic;
  std::vector<TrafficEnd*> at_a, at_b;
};

std::string play(const Round& round) {
  LogCapture log;
  Stage stage(round);
  auto& [world, links, traffic, at_a, at_b] = stage;
  std::string failure;
  if (round.threads) {
    failure = drive(at_a, at_b);
  } else {
    at_a.insert(at_a.end(), at_b.begin(), at_b.end());
    failure = drive(at_a);
  }
  for (const std::string& warning : log.warnings()) failure += "; " + warning;
  return failure;
}

TEST_CASE("Random traffic of many kinds keeps its bytes for as long as asked") {
  const std::uint64_t seed = number_from("TWINPATH_TEST_SEED", 1);
  std::mt19937_64 random(seed);
  const std::int64_t end =
      now_ns() + static_cast<std::int64_t>(number_from("TWINPATH_SOAK_SECONDS", 3)) * kSecond;
  int rounds = 0;
  do {
    const Round round = random_round(random);
    INFO("seed " << seed << ", round " << ++rounds << ": " << round.shape << ", "
                 << round.connections << " connections each way"
                 << (round.threads ? ", two threads" : "")
                 << (round.overtake ? ", queues overtake each other" : ""));
    REQUIRE(play(round) == "");
  } while (now_ns() < end);
}

std::string abort_at_some_point(const Round& round, std::uint64_t seed) {
  LogCapture log;
  Stage stage(round);
  std::vector<Doomed> at_a, at_b;
  for (std::size_t i = 0; i < stage.links.size(); ++i) {
    Link& link = stage.links[i];
    Traffic& t = *stage.traffic[i];
    const bool forth = i % 2 == 0;
    (forth ? at_a : at_b).push_back({&t.sender, link.send.get(), [&link] { link.send.reset(); }});
    (forth ? at_b : at_a).push_back({&t.receiver, link.recv.get(), [&link] { link.recv.reset(); }});
  }
  const std::size_t steps = std::size_t{1} << (2 + seed % 8);
  std::thread other([&] { abort_rank(std::move(at_b), seed + 1, steps); });
  abort_rank(std::move(at_a), seed, steps);
  other.join();
  for (const auto& t : stage.traffic)
    if (!t->sender.untouched() || !t->receiver.untouched())
      return "memory was written after it had been given back";
  return {};
}

// To see one again: TWINPATH_TEST_SEED=<its seed>.  Longer: TWINPATH_SOAK_SECONDS.
TEST_CASE("Random traffic is aborted at any point, and nobody touches memory that was given back") {
  const std::uint64_t first = number_from("TWINPATH_TEST_SEED", 1);
  const std::int64_t end =
      now_ns() + static_cast<std::int64_t>(number_from("TWINPATH_SOAK_SECONDS", 5)) * kSecond;
  for (std::uint64_t seed = first; seed == first || now_ns() < end; ++seed) {
    std::mt19937_64 random(seed);
    Round round = random_round(random);
    // Mostly what the CPU copies, and more of it than there is time for.
    for (Mix& mix : round.mixes) {
      if (random() % 3 != 0) mix.usual = mix.large = 64;
      mix.groups = 100'000;
    }
    INFO("TWINPATH_TEST_SEED=" << seed << ": " << round.shape << ", " << round.connections
                               << " connections each way"
                               << (round.overtake ? ", queues overtake each other" : ""));
    REQUIRE(abort_at_some_point(round, seed) == "");
  }
}

}  // namespace
}  // namespace twinpath::test
