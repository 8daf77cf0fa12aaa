#include "plugin/fabric/soft/faults.h"

#include <algorithm>
#include <charconv>

#include "plugin/base/clock.h"

namespace twinpath::soft {
namespace {

enum Key : std::size_t {
  kSend,
  kDelay,
  kInit,
  kRtr,
  kRts,
  kDownDevice,
  kDownAt,
  kDownFor,
  kDownEvery,
  kLate,
  kSplit,
  kSlowDevice,
  kSlowMbps,
  kKeys
};
constexpr std::array<std::string_view, kKeys> kNames{
    "fail_send",   "delay_us",    "fail_init", "fail_rtr",      "fail_rts",
    "down_device", "down_at_ms",  "down_ms",   "down_every_ms", "late_us",
    "split_us",    "slow_device", "slow_mbps"};
constexpr std::uint64_t kMostDevices = 32;

}  // namespace

bool Faults::set(std::string_view text, std::string& why) {
  std::array<std::uint64_t, kKeys> values{};
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest = item.size() == rest.size() ? std::string_view{} : rest.substr(item.size() + 1);
    std::size_t equals = item.find('=');
    const auto* key = std::find(kNames.begin(), kNames.end(), item.substr(0, equals));
    std::string_view number = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    std::uint64_t v = 0;
    auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), v);
    bool good = ec == std::errc{} && end == number.data() + number.size() && v > 0 &&
                v < (std::uint64_t{1} << 40);
    if (!good || key == kNames.end() ||
        ((*key == kNames[kDownDevice] || *key == kNames[kSlowDevice]) && v > kMostDevices)) {
      why = "'" + std::string(item) +
            "' is not a fault (fail_send=N, delay_us=T, fail_init=N, fail_rtr=N, fail_rts=N, "
            "down_device=N, down_at_ms=T, down_ms=T, down_every_ms=T, late_us=T, split_us=T, "
            "slow_device=N, slow_mbps=R)";
      return false;
    }
    values[static_cast<std::size_t>(key - kNames.begin())] = v;
  }
  fail_send_ = values[kSend];
  delay_us_ = static_cast<std::int64_t>(values[kDelay]);
  for (std::size_t i = 0; i < failing_moves_.size(); ++i)
    failing_moves_[i].store(static_cast<std::int64_t>(values[kInit + i]));
  late_us_ = static_cast<std::int64_t>(values[kLate]);
  split_us_ = static_cast<std::int64_t>(values[kSplit]);
  down_device_ = static_cast<int>(values[kDownDevice]);
  if (values[kDownAt] != 0) down_at_ms_ = static_cast<std::int64_t>(values[kDownAt]);
  down_ms_ = static_cast<std::int64_t>(values[kDownFor]);
  down_every_ms_ = static_cast<std::int64_t>(values[kDownEvery]);
  slow_device_ = static_cast<int>(values[kSlowDevice]);
  slow_mbps_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(values[kSlowMbps], 0xffffffffu));
  any_ = std::any_of(values.begin(), values.end(), [](std::uint64_t v) { return v != 0; });
  return true;
}

bool Faults::is_failing_port_up(std::int64_t now_ns) {
  if (began_ns_ == 0) began_ns_ = now_ns;
  const std::int64_t since = (now_ns - began_ns_) / kMillisecond - down_at_ms_;
  if (since < 0) return true;
  return down_ms_ > 0 && (down_every_ms_ > 0 ? since % down_every_ms_ : since) >= down_ms_;
}

bool Faults::next_move_fails(ibv_qp_state to) {
  static_assert(IBV_QPS_RTR == IBV_QPS_INIT + 1 && IBV_QPS_RTS == IBV_QPS_INIT + 2);
  if (!any_ || to < IBV_QPS_INIT || to > IBV_QPS_RTS) return false;
  std::atomic<std::int64_t>& left = failing_moves_[static_cast<std::size_t>(to - IBV_QPS_INIT)];
  return left.load(std::memory_order_relaxed) > 0 &&
         left.fetch_sub(1, std::memory_order_relaxed) > 0;
}

}  // namespace twinpath::soft
