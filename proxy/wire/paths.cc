#include "proxy/wire/paths.h"

#include <algorithm>

#include "plugin/rdma/rail.h"

namespace twinpath {
namespace {

int rail(int n, EndRails end) {
  return end.standby > 0 ? end.regular + n % end.standby : n % end.regular;
}

}  // namespace

QueuePaths choose_paths(int queues, EndRails local, EndRails remote,
                        const std::function<bool(int local, int remote)>& reaches) {
  QueuePaths paths;
  for (int q = 0; q < queues; ++q) paths.queues.push_back({q % local.regular, q % remote.regular});
  paths.regular = queues;
  const int most = std::min(kMaxStandby, kMaxQps - queues);
  for (int n = 0; n < std::min(most, std::max(local.standby, remote.standby)); ++n) {
    const QueuePath path{rail(n, local), rail(n, remote)};
    if (reaches(path.local, path.remote)) paths.queues.push_back(path);
  }
  return paths;
}

}  // namespace twinpath
