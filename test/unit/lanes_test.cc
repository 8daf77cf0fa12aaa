// Which lanes messages take and what becomes of a slow one, alone: queues that nothing is posted
// on, in a time of their own.
#include "proxy/send/lanes.h"

#include <array>
#include <deque>
#include <tuple>
#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::size_t kMin = 1 << 16;

// Queue q lies on rail q % rails at both ends, unless this end has one rail only.
class Bench {
 public:
  std::array<counters::Rail, kMaxRails> counts;
  Lanes lanes;

  Bench(int queues, int rails, LaneRules rules, bool one_here = false)
      : lanes(std::move(rules), counts) {
    use(queues, rails, one_here);
  }
  void use(int queues, int rails, bool one_here = false) {
    std::vector<Lane> used;
    for (int q = 0; q < queues; ++q) {
      ibv_qp& qp = qps_[static_cast<std::size_t>(q)];
      qp.qp_num = static_cast<std::uint32_t>(q % 2);
      qp.send_cq = cq(q / 2);
      const auto rail = static_cast<std::uint8_t>(q % rails);
      const std::uint8_t here = one_here ? std::uint8_t{0} : rail;
      used.push_back({&qp, here, rail, 0, 0, 100'000, &counts[here]});
    }
    lanes.use(used, rails);
  }
  ibv_cq* cq(int i) { return &cqs_[static_cast<std::size_t>(i)]; }
  std::vector<int> turns(int n) {
    std::vector<int> t;
    for (int i = 0; i < n; ++i) t.push_back(lanes.next());
    return t;
  }
  // First and count of so many choices.
  std::vector<std::pair<int, int>> choices(std::size_t bytes, int n) {
    std::vector<std::pair<int, int>> c;
    for (int i = 0; i < n; ++i) {
      const Lanes::Range range = lanes.choose(bytes, expected);
      c.emplace_back(range.first, range.count);
    }
    return c;
  }
  ExpectedTraffic expected;

 private:
  std::array<ibv_qp, kMaxQps> qps_{};
  std::array<ibv_cq, kMaxQps> cqs_{};
};

LaneRules rules(std::vector<int> near = {}) { return {std::move(near), kMin, false, true, false}; }

TEST_CASE("Messages that are not cut take lanes near the GPU in turn, or all where none is near") {
  CHECK(Bench(4, 2, rules()).turns(5) == std::vector<int>{0, 1, 2, 3, 0});
  CHECK(Bench(4, 2, rules({1})).turns(3) == std::vector<int>{1, 3, 1});
  CHECK(Bench(4, 2, rules({5})).turns(3) == std::vector<int>{0, 1, 2});
  Bench one(1, 1, rules({1}));
  CHECK(one.lanes.one());
  CHECK(&one.lanes.next_lane() == &one.lanes.first());
  CHECK_FALSE(Bench(2, 1, rules()).lanes.one());
}

TEST_CASE("A long message takes one lane of each rail, the next ones each time") {
  using Choices = std::vector<std::pair<int, int>>;
  Bench w(4, 2, rules());
  CHECK(w.choices(kMin - 1, 2) == Choices{{0, 1}, {0, 1}});
  CHECK(w.choices(kMin, 3) == Choices{{0, 2}, {2, 2}, {0, 2}});
  CHECK(Bench(6, 4, rules()).choices(kMin, 3) == Choices{{0, 4}, {0, 4}, {0, 4}});
  CHECK(Bench(2, 4, rules()).choices(kMin, 2) == Choices{{0, 2}, {0, 2}});
  // Over several queues of one rail nothing is cut, but for whoever asks for it.
  CHECK(Bench(4, 1, rules()).choices(kMin, 2) == Choices{{0, 1}, {0, 1}});
  LaneRules all = rules();
  all.split_all = true;
  Bench split(4, 1, all);
  CHECK(split.choices(kParcelBytes, 1) == Choices{{0, 1}});
  CHECK(split.choices(kParcelBytes + 1, 2) == Choices{{0, 4}, {0, 4}});
}

TEST_CASE("Middling messages travel whole while many are expected at once") {
  Bench w(2, 2, rules());
  TrafficHints hints;
  hints.peers = {1, 4};
  hints.connections = {1, 1};
  REQUIRE(hints.exact() == (hints.peers.most == hints.peers.least));
  hints.peers = {4, 4};
  w.expected.set(hints);
  CHECK(w.lanes.choose(kMin, w.expected).count == 1);
  CHECK(w.lanes.choose(ExpectedTraffic::kMiddling * kMin, w.expected).count == 2);
}

TEST_CASE("Until anything is measured a message is cut by the ports' speeds") {
  for (const bool measured : {false, true}) {
    LaneRules r = rules();
    r.measured = measured;
    Bench w(2, 2, r);
    const StripePlan plan = w.lanes.cut(1 << 20, {0, 2});
    REQUIRE(plan.count == 2);
    CHECK(plan.chunks[0] == Chunk{0, 0, 1 << 19});
    CHECK(plan.chunks[1] == Chunk{1, 1 << 19, 1 << 19});
    CHECK(w.lanes.measures(kMin) == measured);
    CHECK_FALSE(w.lanes.measures(kMin - 1));
    CHECK(w.counts[1].permille.get() == (measured ? 500 : 0));
  }
}

TEST_CASE("A completion's lane is known by its queue's number and its CQ") {
  Bench w(4, 2, rules());
  CHECK(w.lanes.find(0, w.cq(0)) == 0);
  CHECK(w.lanes.find(1, w.cq(0)) == 1);
  CHECK(w.lanes.find(0, w.cq(1)) == 2);
  CHECK(w.lanes.find(2, w.cq(0)) == -1);
  CHECK(w.lanes.find(0, w.cq(2)) == -1);
}

using Told = std::vector<std::tuple<int, bool>>;  // rail, slow

// Messages of 1 MiB, one after the other, over lanes of which number 1 brings `bytes_per_us`.
Told pump(Bench& w, std::int64_t& now, std::int64_t ms, std::uint64_t bytes_per_us) {
  Told told;
  for (const std::int64_t end = now + ms * kMillisecond; now < end;) {
    const Lanes::Range over = w.lanes.choose(1 << 20, w.expected);
    const StripePlan plan = w.lanes.cut(1 << 20, over);
    std::int64_t last = now;
    std::array<std::int64_t, 2> took{};
    for (int i = 0; i < plan.count; ++i) {
      const Chunk& c = plan.chunks[static_cast<std::size_t>(i)];
      const auto lane = static_cast<std::size_t>(over.first + c.lane);
      w.lanes.posted(lane, c.bytes, now);
      took[lane] = static_cast<std::int64_t>(c.bytes * 1000 / (lane == 1 ? bytes_per_us : 10'000));
    }
    for (const std::size_t lane : {took[0] <= took[1] ? 0u : 1u, took[0] <= took[1] ? 1u : 0u}) {
      if (took[lane] == 0) continue;
      last = now + took[lane];
      w.lanes.arrived(lane, last, [&](const Lane& of, bool slow, std::uint32_t permille) {
        told.emplace_back(of.remote_rail, slow);
        CHECK(permille < (slow ? 400 : 600));
      });
    }
    now = last;
  }
  return told;
}

TEST_CASE("A slow rail gets less of each message, no whole ones, and one line in the log") {
  Bench w(2, 2, rules());
  std::int64_t now = 1;
  CHECK(pump(w, now, 100, 10'000).empty());
  CHECK(w.turns(2) == std::vector<int>{0, 1});
  CHECK(pump(w, now, 250, 2'000).empty());
  CHECK(w.turns(2) == std::vector<int>{0, 0});
  CHECK(w.counts[1].permille.get() < 250);
  CHECK(w.counts[0].permille.get() > 750);
  CHECK(pump(w, now, 500, 2'000) == Told{{1, true}});
  CHECK(pump(w, now, 500, 10'000) == Told{{1, false}});
  CHECK(w.turns(2) == std::vector<int>{0, 1});
  // Other queues are as good as their ports until they show otherwise.
  (void)pump(w, now, 250, 2'000);
  w.use(2, 2);
  CHECK(w.turns(2) == std::vector<int>{0, 1});
  CHECK(w.counts[1].permille.get() == 500);
  // With one rail left there are no shares.
  w.use(1, 1);
  CHECK(w.counts[0].permille.get() == 0);
}

TEST_CASE("Where this end has one rail the peer's are told apart") {
  LaneRules r = rules();
  r.by_remote = true;
  Bench w(2, 2, r, true);
  std::int64_t now = 1;
  CHECK(pump(w, now, 800, 2'000) == Told{{1, true}});
  CHECK(w.counts[0].permille.get() >= 999);
  // Nothing is known of other queues, so nothing is taken back.
  w.use(2, 2, true);
  CHECK(pump(w, now, 100, 10'000).empty());
}

TEST_CASE("The log says that a rail is slow after a while, and seldom") {
  SlowRail rail;
  const std::int64_t now = 1;
  CHECK_FALSE(rail.tells(false, now));
  CHECK_FALSE(rail.tells(true, now));
  CHECK_FALSE(rail.tells(true, now + SlowRail::kSlowFor - 1));
  CHECK_FALSE(rail.tells(false, now + SlowRail::kSlowFor));  // it was not for long
  const std::int64_t again = now + SlowRail::kSlowFor;
  CHECK_FALSE(rail.tells(true, again));
  const std::int64_t said = again + SlowRail::kSlowFor;
  CHECK(rail.tells(true, said));
  CHECK_FALSE(rail.tells(true, said + 1));
  CHECK(rail.tells(false, said + 2));
  CHECK_FALSE(rail.tells(false, said + 3));
  CHECK_FALSE(rail.tells(true, said + 4));
  CHECK_FALSE(rail.tells(true, said + SlowRail::kSayAgain - 1));
  CHECK(rail.tells(true, said + SlowRail::kSayAgain));
  rail.forget();
  CHECK_FALSE(rail.tells(false, said + SlowRail::kSayAgain + 1));
}

}  // namespace
}  // namespace twinpath
