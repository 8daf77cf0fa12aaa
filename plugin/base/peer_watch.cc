#include "plugin/base/peer_watch.h"

#include <algorithm>

#include "plugin/base/clock.h"

namespace twinpath {
namespace {

// The peer's kernel is asked every second while somebody waits, and may lose a question or two.
constexpr std::int64_t kSilenceMs = 3000;
// Suspicion begins after this part of the limit: what is asked then has time to be answered.
constexpr std::int64_t kSuspicionPart = 8;

}  // namespace

Verdict judge(const Evidence& e) {
  switch (e.sign) {
    case PeerSign::ended:
      return Verdict::ended;
    case PeerSign::reset:
      return Verdict::reset;
    case PeerSign::quiet:
    case PeerSign::talking:
    case PeerSign::unreachable:
      break;
  }
  if (!e.outstanding) return Verdict::fine;
  // A socket that the kernel has given up will never answer again, whatever its clock says.
  const bool given_up = e.sign == PeerSign::unreachable;
  const std::int64_t quiet_ms = given_up ? e.stall_ms : std::min(e.silence_ms, e.stall_ms);
  if (!given_up && e.silence_ms < kSilenceMs) return Verdict::fine;
  if (quiet_ms >= e.limit_ms) return Verdict::silent;
  return quiet_ms >= e.limit_ms / kSuspicionPart ? Verdict::suspect : Verdict::fine;
}

Verdict PeerWatch::look(PeerSign sign, std::int64_t silence_ms, std::int64_t now, bool outstanding,
                        std::uint64_t progress) {
  const std::int64_t before = ran_.time();
  const std::int64_t step = (ran_.look(now) - before) / kMillisecond;
  evidence_.sign = sign;
  evidence_.limit_ms = limit_ms_;
  evidence_.outstanding = outstanding;
  evidence_.silence_ms = std::min(silence_ms, evidence_.silence_ms + step);
  evidence_.stall_ms = outstanding && progress == progress_ ? evidence_.stall_ms + step : 0;
  progress_ = progress;
  return judge(evidence_);
}

}  // namespace twinpath
