// How fast lanes turn out to be: what follows from it for messages, and who is told.
#include <algorithm>

#include "plugin/base/clock.h"
#include "proxy/send/send_comm.h"

namespace twinpath {
namespace {

// A lane has been slow for so long before the log says so, and says it again for the first time.
constexpr std::int64_t kSlowFor = 300 * kMillisecond, kSayAgain = 60 * kSecond;

}  // namespace

// Anew when queues were replaced: what is measured belongs to the paths that are gone.
void ProxySendComm::begin_pacing() {
  if (rails_ == 1 || !core_->devices->config().measure_rails) {
    pace_.reset();
    return;
  }
  if (pace_ == nullptr) pace_ = std::make_unique<Pace>();
  std::array<std::uint32_t, kMaxQps> speeds;
  for (std::size_t i = 0; i < lanes_.size(); ++i) speeds[i] = lanes_[i].speed_mbps;
  pace_->shares.reset({speeds.data(), lanes_.size()});
  for (Pace::Rail& rail : pace_->rails) rail.slow_since = 0, rail.told = false;
}

// Queues that messages take in turn which are not cut, and how much of the others each rail gets.
void ProxySendComm::choose_turns() {
  const auto near = [this](std::size_t lane) {
    return near_rails_.empty() || std::find(near_rails_.begin(), near_rails_.end(),
                                            lanes_[lane].rail) != near_rails_.end();
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
  for (std::size_t r = 0; r < pools_.size(); ++r) counts_->rails[r].permille.set(permille[r]);
}

// While queues are replaced lanes still name those that are gone, and completions of these come.
int ProxySendComm::lane_of(const ibv_wc& wc) const {
  if (link_->halted()) return -1;
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].qp->qp_num == wc.qp_num &&
        lanes_[i].qp->send_cq == hub_->polled()->cq())  // devices number queues each on its own
      return static_cast<int>(i);
  return -1;
}

void ProxySendComm::piece_arrived(const ibv_wc& wc) {
  const int lane = lane_of(wc);
  const std::int64_t now = now_ns();
  if (pace_ == nullptr || lane < 0 || !pace_->shares.completed(static_cast<std::size_t>(lane), now))
    return;
  choose_turns();
  tell_pace(now);
}

void ProxySendComm::tell_pace(std::int64_t now) {
  struct Sum {
    std::uint64_t weight = 0, speed = 0;
    std::uint32_t permille = 0;
    const Lane* lane = nullptr;
  };
  std::array<Sum, kMaxRails> sums;
  const bool by_remote = std::popcount(link_->set().regular_rails()) == 1;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Sum& sum = sums[by_remote ? lanes_[i].remote_rail : lanes_[i].rail];
    sum.weight += pace_->shares.weight(i);
    sum.speed += pace_->shares.speed(i);
    sum.permille += pace_->shares.permille(i);
    sum.lane = &lanes_[i];
  }
  for (std::size_t r = 0; r < sums.size(); ++r) {
    const Sum& sum = sums[r];
    Pace::Rail& rail = pace_->rails[r];
    const bool slow = sum.weight < sum.speed / 2;
    rail.slow_since = !slow ? 0 : rail.slow_since != 0 ? rail.slow_since : now;
    if (slow == rail.told || sum.lane == nullptr) continue;
    if (slow && (now - rail.slow_since < kSlowFor || now < rail.silent_until)) continue;
    rail.told = slow;
    if (slow) rail.silent_until = now + kSayAgain;
    link_->tell_pace(sum.lane->rail, sum.lane->remote_rail, slow, sum.permille);
  }
}

}  // namespace twinpath
