// Cutting by what lanes bring through, on lanes whose speed is known: a small model of a link with
// its queue, in a time of its own.
#include "proxy/send/lane_shares.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "proxy/wire/stripe.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::int64_t kMs = 1'000'000;

struct Link {
  double bytes_per_us = 0;
  std::int64_t free_at = 0;
};

// `window` messages under way, each cut over all lanes; whoever polls sees pieces every `poll` ns.
struct Model {
  std::shared_ptr<std::vector<Link>> shared = std::make_shared<std::vector<Link>>();
  std::vector<Link>& links = *shared;
  std::int64_t latency = 3000;
  std::int64_t poll = 200;
  std::uint32_t noise = 0;  // up to so many ns more for a piece
  std::size_t window = 4;
  std::size_t bytes = 1 << 20;
  bool measured = true;

  LaneShares shares;
  std::int64_t now = 1;
  std::uint64_t arrived = 0;

  explicit Model(std::vector<double> speeds, std::vector<std::uint32_t> ports = {}) {
    for (const double s : speeds) links.push_back({s});
    if (ports.empty()) ports.assign(links.size(), 400'000);
    shares.reset(ports);
    ports_ = ports;
  }
  // Another flow over the same links.
  explicit Model(const std::shared_ptr<std::vector<Link>>& with) : shared(with) {
    ports_.assign(links.size(), 400'000);
    shares.reset(ports_);
  }
  void step() {
    while (open_.size() < window) post();
    now += poll;
    take();
  }
  // MB/s over so long.
  double run(std::int64_t ms) {
    const std::int64_t begin = now, end = now + ms * kMs;
    const std::uint64_t before = arrived;
    while (now < end) step();
    return static_cast<double>(arrived - before) * 1e3 / static_cast<double>(now - begin);
  }

 private:
  struct Piece {
    std::size_t lane;
    std::int64_t at;
    std::uint64_t message;
  };
  struct Message {
    std::uint64_t number;
    int left;
  };
  void post() {
    std::vector<std::uint32_t> weights;
    for (std::size_t i = 0; i < links.size(); ++i)
      weights.push_back(measured ? shares.weight(i) : ports_[i]);
    const StripePlan plan = plan_stripes(bytes, weights);
    open_.push_back({next_, plan.count});
    for (int i = 0; i < plan.count; ++i) {
      const Chunk& c = plan.chunks[static_cast<std::size_t>(i)];
      const auto lane = static_cast<std::size_t>(c.lane);
      Link& link = links[lane];
      link.free_at =
          std::max(link.free_at, now) +
          static_cast<std::int64_t>(static_cast<double>(c.bytes) * 1e3 / link.bytes_per_us);
      const auto late = noise != 0 ? static_cast<std::int64_t>(random_() % noise) : 0;
      pieces_.push_back({lane, link.free_at + latency + late, next_});
      shares.posted(lane, static_cast<std::uint32_t>(c.bytes), now);
    }
    ++next_;
  }
  void take() {
    for (auto at = pieces_.begin(); at != pieces_.end();) {
      if (at->at > now) {
        ++at;
        continue;
      }
      (void)shares.completed(at->lane, now);
      for (auto m = open_.begin(); m != open_.end(); ++m) {
        if (m->number != at->message) continue;
        if (--m->left == 0) {
          arrived += bytes;
          open_.erase(m);
        }
        break;
      }
      at = pieces_.erase(at);
    }
  }
  std::vector<std::uint32_t> ports_;
  std::deque<Message> open_;
  std::deque<Piece> pieces_;
  std::uint64_t next_ = 0;
  std::mt19937 random_{7};
};

TEST_CASE("Lanes as fast as their ports are cut by the ports' speeds") {
  Model even({25'000, 25'000});
  CHECK(even.run(300) > 0.9 * 50'000);
  CHECK(even.shares.weight(0) == even.shares.weight(1));
  Model uneven({25'000, 6'250}, {400'000, 100'000});
  CHECK(uneven.run(300) > 0.9 * 31'250);
  CHECK(uneven.shares.weight(0) == 400'000);
  CHECK(uneven.shares.weight(1) == 100'000);
  CHECK_FALSE(uneven.shares.slow(1));
}

TEST_CASE("F10: a lane at a part of its speed holds up nobody, within a second") {
  struct Row {
    std::vector<double> speeds;
    double least;  // of all that the lanes together could bring
  };
  const Row row = GENERATE(
      Row{{25'000, 2'500}, 0.85}, Row{{25'000, 14'600}, 0.75},  // behind a slot of half its width
      Row{{25'000, 10'000}, 0.75}, Row{{25'000, 1'000}, 0.9}, Row{{250, 25'000}, 0.9},
      Row{{25'000, 25'000, 2'500, 25'000}, 0.75}, Row{{25'000, 5'000, 2'500, 1'000}, 0.75});
  CAPTURE(row.speeds);
  double sum = 0;
  for (const double s : row.speeds) sum += s;
  Model cut_by_speed(row.speeds);
  cut_by_speed.measured = false;
  const double before = cut_by_speed.run(500);
  Model model(row.speeds);
  (void)model.run(1000);
  const double after = model.run(500);
  CAPTURE(before, after, sum);
  CHECK(after > row.least * sum);
  CHECK(after > 1.1 * before);
}

TEST_CASE("A lane that is fast again is used again") {
  Model model({25'000, 2'500});
  (void)model.run(1000);
  CHECK(model.shares.slow(1));
  model.links[1].bytes_per_us = 25'000;
  (void)model.run(1000);
  CHECK(model.run(300) > 0.8 * 50'000);
  CHECK_FALSE(model.shares.slow(1));
}

TEST_CASE("A lane that gets nothing is tried now and then, and costs little until it is better",
          "[arithmetic]") {
  Model model({25'000, 100});
  (void)model.run(2000);
  CHECK(model.shares.slow(1));
  CHECK(model.run(4000) > 0.9 * 25'000);
  model.links[1].bytes_per_us = 25'000;
  // Its pause is no longer than what it was bad for, nearly.
  (void)model.run(9000);
  CHECK(model.run(300) > 0.8 * 50'000);
}

TEST_CASE("Flows that share links come to terms", "[arithmetic]") {
  const std::size_t flows = GENERATE(2u, 8u);
  const double second = GENERATE(25'000.0, 12'500.0, 2'500.0);
  const auto links = std::make_shared<std::vector<Link>>();
  *links = {{25'000}, {second}};
  std::vector<std::unique_ptr<Model>> all;
  for (std::size_t i = 0; i < flows; ++i) all.push_back(std::make_unique<Model>(links));
  const auto run = [&](std::int64_t ms) {
    std::uint64_t before = 0, after = 0;
    for (const auto& m : all) before += m->arrived;
    const std::int64_t begin = all[0]->now;
    while (all[0]->now < begin + ms * kMs)
      for (const auto& m : all) m->step();
    for (const auto& m : all) after += m->arrived;
    return static_cast<double>(after - before) * 1e3 / static_cast<double>(all[0]->now - begin);
  };
  (void)run(1000);
  CHECK(run(500) > 0.8 * (25'000 + second));
}

TEST_CASE("A lane that stands still for a second is used again at once", "[arithmetic]") {
  Model model({25'000, 25'000});
  model.window = 16;  // the other goes on meanwhile
  (void)model.run(300);
  model.links[1].free_at = model.now + 1000 * kMs;
  (void)model.run(1100);
  (void)model.run(300);
  CHECK(model.run(300) > 0.9 * 50'000);
}

TEST_CASE("What is not the wire's changes no share") {
  Model model({25'000, 25'000});
  SECTION("latency") {
    model.latency = 200'000;
    model.bytes = 64 * 1024;
  }
  SECTION("a caller who polls seldom") { model.poll = 500'000; }
  SECTION("one message at a time") { model.window = 1; }
  (void)model.run(3000);
  CHECK(model.shares.weight(0) == model.shares.weight(1));
}

TEST_CASE("Noise costs little", "[arithmetic]") {
  Model model({25'000, 25'000});
  model.noise = GENERATE(20'000u, 200'000u);
  Model still({25'000, 25'000});
  still.noise = model.noise;
  still.measured = false;
  CHECK(model.run(3000) > 0.85 * still.run(3000));
}

TEST_CASE("What was under way before a reset counts for nothing") {
  LaneShares shares;
  const std::uint32_t ports[] = {100, 100};
  shares.reset(ports);
  shares.posted(0, 1000, 1);
  shares.reset(ports);
  CHECK_FALSE(shares.completed(0, 500 * kMs));
  CHECK(shares.weight(0) == 100);
}

}  // namespace
}  // namespace twinpath
