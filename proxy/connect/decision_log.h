#pragma once
// Says each decision once per peer: connections are many more.
//
// Threads: any.
#include <mutex>
#include <set>
#include <string>

#include "topology/decide/decision.h"

namespace twinpath {

class DecisionLog {
 public:
  // `peer` tells peers apart.
  void tell(const std::string& peer, const Decision& decision, const PlacementRecord& local,
            const PlacementRecord& remote, const EndNames& here, const EndNames& there);

 private:
  std::mutex mutex_;
  std::set<std::string> told_;
};

}  // namespace twinpath
