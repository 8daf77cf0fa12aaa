#include "proxy/send/lanes.h"

#include <algorithm>
#include <utility>

#include "proxy/queues/shared_pairs.h"

namespace twinpath {

bool SlowRail::tells(bool slow, std::int64_t now) {
  since_ = !slow ? 0 : since_ != 0 ? since_ : now;
  if (slow == told_) return false;
  if (slow && (now - since_ < kSlowFor || now < silent_until_)) return false;
  told_ = slow;
  if (slow) silent_until_ = now + kSayAgain;
  return true;
}

void Lanes::use(std::vector<Lane> lanes, int rails) {
  lanes_ = std::move(lanes);
  first_ = lanes_.front();
  one_ = lanes_.size() == 1;
  shared_ = first_.shared;  // all are, or none
  rails_ = rails;
  next_cut_ = 0;
  if (rails_ == 1 || !rules_.measured) {
    pace_.reset();
  } else {
    if (pace_ == nullptr) pace_ = std::make_unique<Pace>();
    std::array<std::uint32_t, kMaxQps> speeds;
    for (std::size_t i = 0; i < lanes_.size(); ++i) speeds[i] = lanes_[i].speed_mbps;
    pace_->shares.reset({speeds.data(), lanes_.size()});
    for (SlowRail& rail : pace_->rails) rail.forget();
  }
  choose_turns();
}

bool Lanes::room() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return SharedPairs::room(lane.qp); });
}

// Lanes that messages take in turn which are not cut, and how much of the others each rail gets.
void Lanes::choose_turns() {
  const std::vector<int>& near_rails = rules_.near_rails;
  const auto near = [&](std::size_t lane) {
    return near_rails.empty() ||
           std::find(near_rails.begin(), near_rails.end(), lanes_[lane].rail) != near_rails.end();
  };
  const auto fast = [this](std::size_t lane) {
    return pace_ == nullptr || !pace_->shares.slow(lane);
  };
  const auto choose = [this](auto&& fits) {
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (fits(i)) whole_[whole_count_++] = static_cast<std::uint8_t>(i);
    return whole_count_ != 0;
  };
  whole_count_ = next_whole_ = 0;
  // Fewer queues than rails, or those near the GPU are out of use, or slow.
  (void)(choose([&](std::size_t i) { return near(i) && fast(i); }) || choose(fast) ||
         choose([](std::size_t) { return true; }));
  // With one rail left nothing is cut, and readers are to see no shares.
  std::array<std::uint32_t, kMaxRails> permille{};
  if (pace_ != nullptr)
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      permille[lanes_[i].rail] += pace_->shares.permille(i);
  for (std::size_t r = 0; r < counts_.size(); ++r) counts_[r].permille.set(permille[r]);
}

int Lanes::find(std::uint32_t qp_num, const ibv_cq* cq) const {
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].qp->qp_num == qp_num && lanes_[i].qp->send_cq == cq) return static_cast<int>(i);
  return -1;
}

Lanes::Range Lanes::choose(std::size_t bytes, const ExpectedTraffic& expected) {
  const int queues = static_cast<int>(lanes_.size());
  if (rules_.split_all && bytes > kParcelBytes) return {0, queues};
  if (rails_ == 1 || bytes < rules_.stripe_min ||
      bytes < expected.stripe_from(rules_.stripe_min, rails_))
    return {};
  // One queue per rail, the next set each time: queue q lies on rail q % rails on both ends, so
  // any `rails_` queues in a row (with wrap-around at a multiple) cover all of them.
  const int count = std::min(rails_, queues);
  int first = next_cut_ / count * count;
  if (first + count > queues) first = 0;
  next_cut_ = (first + count) % queues;
  return {first, count};
}

StripePlan Lanes::cut(std::size_t bytes, Range over) const {
  std::array<std::uint32_t, kMaxQps> weights;
  for (int i = 0; i < over.count; ++i) {
    const auto lane = static_cast<std::size_t>(over.first + i);
    weights[static_cast<std::size_t>(i)] =
        pace_ != nullptr ? pace_->shares.weight(lane) : lanes_[lane].speed_mbps;
  }
  return plan_stripes(bytes, {weights.data(), static_cast<std::size_t>(over.count)});
}

std::array<Lanes::RailSum, kMaxRails> Lanes::sums() const {
  std::array<RailSum, kMaxRails> sums;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::size_t rail = rules_.by_remote ? lanes_[i].remote_rail : lanes_[i].rail;
    RailSum& sum = sums[rail];
    sum.rail = rail;
    sum.weight += pace_->shares.weight(i);
    sum.speed += pace_->shares.speed(i);
    sum.permille += pace_->shares.permille(i);
    sum.lane = &lanes_[i];
  }
  return sums;
}

}  // namespace twinpath
