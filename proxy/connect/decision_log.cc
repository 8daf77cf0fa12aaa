#include "proxy/connect/decision_log.h"

#include "plugin/base/log.h"

namespace twinpath {

void DecisionLog::tell(const std::string& peer, const Decision& decision,
                       const PlacementRecord& local, const PlacementRecord& remote,
                       const EndNames& here, const EndNames& there) {
  const std::string line = summary(decision, local, remote, here, there);
  {
    std::lock_guard hold(mutex_);
    if (!told_.insert(peer + " " + line).second) return;
  }
  TP_INFO(net, "%s", line.c_str());
  if (decision.send.wish_conflict)
    TP_WARN(
        "%s and %s ask for different modes (TWINPATH_MODE, TWINPATH_PEER_MODE); the lesser holds",
        here.host.c_str(), there.host.c_str());
}

}  // namespace twinpath
