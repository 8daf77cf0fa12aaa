#include "proxy/send/lane_shares.h"

#include <algorithm>
#include <cmath>

namespace twinpath {
namespace {

constexpr std::int64_t kFirstRest = 50'000'000, kLongestRest = 30'000'000'000;
constexpr double kLeast = 1.0 / 16;          // of the best lane
constexpr std::uint32_t kTrial = 4;          // that part of the best lane's weight
constexpr std::uint32_t kUnknown = 100'000;  // Mb/s, of a port that does not say
constexpr double kLeastGain = 0.1;
// Within this of what it is given a lane stays; all above the other, and speeds say enough.
constexpr double kSlack = 0.25, kAsGoodAsNew = 0.8;

}  // namespace

void LaneShares::reset(std::span<const std::uint32_t> speeds) {
  lanes_ = {};
  count_ = std::min(speeds.size(), lanes_.size());
  for (std::size_t i = 0; i < count_; ++i)
    lanes_[i].speed = lanes_[i].weight = speeds[i] != 0 ? speeds[i] : kUnknown;
  window_began_ = 0;
  fastest_ = best_factor_ = 0;
}

void LaneShares::posted(std::size_t lane, std::uint32_t bytes, std::int64_t now) {
  Lane& l = lanes_[lane];
  if (window_began_ == 0) window_began_ = now;
  if (l.under_way++ == 0) l.since = now;
  l.bytes += bytes;
  if (l.state != Lane::State::offered) return;
  l.state = Lane::State::tried;
  l.weight = 0;
  l.until = now;
}

// Pieces of a lane are of about one size, so that one of them is the mean of those under way.
bool LaneShares::completed(std::size_t lane, std::int64_t now) {
  Lane& l = lanes_[lane];
  if (l.under_way == 0) return false;  // of before a reset
  const std::uint64_t bytes = l.bytes / l.under_way;
  l.bytes -= bytes;
  l.arrived += bytes;
  ++l.pieces;
  if (--l.under_way == 0) l.busy += now - std::max(l.since, window_began_);
  // In order: behind the piece of a trial nothing is under way.
  if (l.state == Lane::State::tried && l.under_way == 0) tried(l, bytes, now);
  if (l.state == Lane::State::mute && l.under_way == 0) {
    l.state = Lane::State::parked;
    l.until = now;
  }
  if (!window_is_over(now)) return false;
  judge(now);
  offer(now);
  for (std::size_t i = 0; i < count_; ++i) {
    lanes_[i].pieces = 0;
    lanes_[i].arrived = 0;
    lanes_[i].busy = 0;
  }
  window_began_ = now;
  return true;
}

bool LaneShares::window_is_over(std::int64_t now) const {
  if (window_began_ == 0 || now - window_began_ < kWindow) return false;
  if (now - window_began_ >= kLongWindow) return true;
  for (std::size_t i = 0; i < count_; ++i)
    if (lanes_[i].weight != 0 && lanes_[i].pieces < kPieces) return false;
  return true;
}

void LaneShares::judge(std::int64_t now) {
  // Of one that brought nothing what it would have brought at best.
  std::array<double, kMaxQps> rate{};
  double fastest = 0, best_factor = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const Lane& l = lanes_[i];
    std::int64_t busy = l.busy;
    if (l.under_way != 0) busy += now - std::max(l.since, window_began_);
    const std::uint64_t bytes = l.pieces != 0 ? l.arrived : l.bytes;
    if (l.state != Lane::State::carries || bytes == 0 || busy <= 0) continue;
    rate[i] = static_cast<double>(bytes) / static_cast<double>(busy);
    fastest = std::max(fastest, rate[i]);
    best_factor = std::max(best_factor, rate[i] / l.speed);
  }
  if (best_factor == 0) return;
  fastest_ = fastest;
  best_factor_ = best_factor;
  // What each would get beside the one that comes nearest to its port's speed.
  std::array<double, kMaxQps> fair{};
  bool as_good_as_new = true, fits = true;
  for (std::size_t i = 0; i < count_; ++i) {
    const Lane& l = lanes_[i];
    as_good_as_new = as_good_as_new && l.state == Lane::State::carries;
    if (rate[i] == 0) continue;
    fair[i] = rate[i] / best_factor;
    as_good_as_new = as_good_as_new && fair[i] >= kAsGoodAsNew * l.speed;
    fits = fits && fair[i] >= (1 - kSlack) * l.weight && fair[i] <= (1 + kSlack) * l.weight;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    Lane& l = lanes_[i];
    if (rate[i] == 0) continue;
    if (rate[i] < kLeast * fastest && l.pieces == 0) {
      l.weight = 0;
      l.state = Lane::State::mute;
    } else if (rate[i] < kLeast * fastest) {
      park(l, now);
    } else if (as_good_as_new && fits) {
      l.weight = l.speed;
      l.pause = 0;
    } else if (!fits) {
      go_towards(l, fair[i]);
    }
  }
}

void LaneShares::go_towards(Lane& l, double fair) {
  const int direction = fair > l.weight ? 1 : -1;
  l.gain = direction == l.direction ? std::min(1.5 * l.gain, 1.0)
           : l.direction != 0       ? std::max(l.gain / 2, kLeastGain)
                                    : l.gain;
  l.direction = direction;
  const double weight = l.weight * std::pow(fair / l.weight, l.gain);
  l.weight = std::clamp(static_cast<std::uint32_t>(weight), 1u, l.speed);
}

void LaneShares::park(Lane& l, std::int64_t now) {
  l.weight = 0;
  l.state = Lane::State::parked;
  l.pause = std::clamp(2 * l.pause, kFirstRest, kLongestRest);
  l.until = now + l.pause;
}

void LaneShares::offer(std::int64_t now) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count_; ++i) most = std::max(most, lanes_[i].weight);
  for (std::size_t i = 0; i < count_; ++i) {
    Lane& l = lanes_[i];
    if (l.state != Lane::State::parked || now < l.until || l.under_way != 0) continue;
    l.state = Lane::State::offered;
    l.weight = std::clamp(most / kTrial, 1u, l.speed);
  }
}

void LaneShares::tried(Lane& l, std::uint64_t bytes, std::int64_t now) {
  const double rate =
      static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(now - l.until, 1));
  if (rate < kLeast * fastest_) return park(l, now);
  l.state = Lane::State::carries;
  l.weight = best_factor_ == 0
                 ? l.speed
                 : std::clamp(static_cast<std::uint32_t>(rate / best_factor_), 1u, l.speed);
}

std::uint32_t LaneShares::permille(std::size_t lane) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count_; ++i) sum += lanes_[i].weight;
  return sum == 0 ? 0 : static_cast<std::uint32_t>(lanes_[lane].weight * 1000ULL / sum);
}

}  // namespace twinpath
