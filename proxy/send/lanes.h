#pragma once
// The queues of a send comm that are in use, its lanes: which of them a message takes, how much of
// it each when it is cut, and how fast each turns out to be.
//
//   goes whole   on the next lane in turn, among those of rails near the GPU that are not slow
//   is cut       over one lane of each rail, the next set each time, or over all (split_all); by
//                what each brings through (lane_shares.h)
//
// Threads: under the hub's lock.  Decides by what it is told alone.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/counters.h"
#include "proxy/connect/expected_traffic.h"
#include "proxy/send/lane_shares.h"
#include "proxy/send/outgoing.h"
#include "proxy/wire/stripe.h"

namespace twinpath {

// When the log says of a rail that it is slow: once it has been for a while, and again only later.
// That it no longer is, at once.
class SlowRail {
 public:
  static constexpr std::int64_t kSlowFor = 300 * kMillisecond, kSayAgain = 60 * kSecond;
  // It is slow now, or not; whether the log says so.
  bool tells(bool slow, std::int64_t now);
  // Another path: nothing is known of it.
  void forget() { since_ = 0, told_ = false; }

 private:
  std::int64_t since_ = 0;  // slow; 0: it is not
  bool told_ = false;       // the log says that it is
  std::int64_t silent_until_ = 0;
};

struct LaneRules {
  std::vector<int> near_rails;  // near the GPU; empty: all are
  std::size_t stripe_min = 0;   // shorter messages are not cut (TWINPATH_STRIPE_MIN)
  bool split_all = false;       // NCCL_IB_SPLIT_DATA_ON_QPS
  bool measured = true;         // else cut by the ports' speeds (TWINPATH_MEASURE_RAILS)
  bool by_remote = false;       // the peer's rails are those that differ
};

class Lanes {
 public:
  // `counts`: of all rails of the connection, as long as this.
  Lanes(LaneRules rules, std::span<counters::Rail> counts)
      : rules_(std::move(rules)), counts_(counts) {}

  // From now on, in the order of their numbers, 1..kMaxQps; `rails`: the larger count of both ends.
  // What was measured belongs to paths that are gone.
  void use(std::vector<Lane> lanes, int rails);

  // Then there is nothing to choose.
  bool one() const { return one_; }
  const Lane& first() const { return first_; }
  // Whether any is a queue pair that others use, too; whether all have room then.
  bool shared() const { return shared_; }
  bool room() const;
  std::size_t count() const { return lanes_.size(); }
  const Lane& operator[](std::size_t lane) const { return lanes_[lane]; }
  // Of that completion, or -1.  Devices number queues each on its own, so the CQ tells, too.
  int find(std::uint32_t qp_num, const ibv_cq* cq) const;

  // For a message that goes whole.
  int next() {
    const int lane = whole_[next_whole_];
    next_whole_ = next_whole_ + 1u < whole_count_ ? static_cast<std::uint8_t>(next_whole_ + 1) : 0;
    return lane;
  }
  const Lane& next_lane() { return one_ ? first_ : lanes_[static_cast<std::size_t>(next())]; }

  // Lanes [first, first + count) carry a message: 1 is any.
  struct Range {
    int first = 0, count = 1;
  };
  Range choose(std::size_t bytes, const ExpectedTraffic& expected);
  // How it is cut over these; a chunk's lane counts from the first.
  StripePlan cut(std::size_t bytes, Range over) const;

  // Whether pieces of a message are measured: then posted() is told of each.
  bool measures(std::size_t bytes) const { return pace_ != nullptr && bytes >= rules_.stripe_min; }
  void posted(std::size_t lane, std::size_t bytes, std::int64_t now) {
    pace_->shares.posted(lane, static_cast<std::uint32_t>(bytes), now);
  }
  // A piece that was measured has arrived.  `tell(lane, slow, permille)`: the log is to say that
  // the rail of that lane is slow, or no longer, and how much of each message it now gets.
  template <class Tell>
  void arrived(std::size_t lane, std::int64_t now, Tell&& tell) {
    if (pace_ == nullptr || !pace_->shares.completed(lane, now)) return;
    choose_turns();
    for (const RailSum& sum : sums())
      if (sum.lane != nullptr && pace_->rails[sum.rail].tells(sum.weight < sum.speed / 2, now))
        tell(*sum.lane, sum.weight < sum.speed / 2, sum.permille);
  }

 private:
  struct RailSum {
    std::size_t rail = 0;
    std::uint64_t weight = 0, speed = 0;
    std::uint32_t permille = 0;
    const Lane* lane = nullptr;  // null: none in use
  };
  std::array<RailSum, kMaxRails> sums() const;
  void choose_turns();

  const LaneRules rules_;
  const std::span<counters::Rail> counts_;
  Lane first_;
  bool one_ = true, shared_ = false;
  int rails_ = 1;
  std::vector<Lane> lanes_;
  // Null where messages are not cut, or are by the ports' speeds.
  struct Pace {
    LaneShares shares;
    std::array<SlowRail, kMaxRails> rails;  // of the end that has more
  };
  std::unique_ptr<Pace> pace_;
  std::array<std::uint8_t, kMaxQps> whole_{};  // those that messages take in turn
  std::uint8_t whole_count_ = 0, next_whole_ = 0;
  int next_cut_ = 0;
};

}  // namespace twinpath
