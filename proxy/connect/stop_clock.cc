#include "proxy/connect/stop_clock.h"

#include "plugin/base/clock.h"

namespace twinpath {
namespace {

constexpr const char* kNames[] = {"agree", "drain", "renew", "exchange", "connect", "wait"};
// Shorter ones need no account.
constexpr std::int64_t kFelt = 10 * kMillisecond;

}  // namespace

std::string StopClock::text(std::int64_t now) const {
  const std::int64_t whole = total(now);
  std::string out = std::to_string(whole / kMillisecond) + " ms";
  if (whole < kFelt) return out;
  std::string parts;
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::int64_t spent =
        spent_[i] + (i == static_cast<std::size_t>(part_) ? now - turned_ : 0);
    if (spent < kMillisecond || spent * 20 < whole) continue;
    parts += (parts.empty() ? "" : ", ") + std::string(kNames[i]) + " " +
             std::to_string(spent / kMillisecond);
  }
  if (rounds_ > 1) parts += (parts.empty() ? "" : ", ") + std::to_string(rounds_) + " rounds";
  return parts.empty() ? out : out + " (" + parts + ")";
}

}  // namespace twinpath
