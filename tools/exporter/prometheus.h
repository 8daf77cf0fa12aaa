#pragma once
// Counters as Prometheus' text format.
//
// Series are bounded: of each process the kMostPeers peers that it waited for longest (a peer in
// two communicators counts twice) have series of their own, the others are added up under peer
// "other".  A process that has ended has none.
#include <string>
#include <vector>

#include "tools/counters/view.h"

namespace twinpath::tools {

inline constexpr std::size_t kMostPeers = 32;

// A counter of an adapter's port as the kernel shows it.
struct NicCounter {
  std::string hca, port, name;
  std::uint64_t value = 0;
};
// Those that tell of retransmission, congestion and lost links, of all adapters below `sysfs`
// ("/sys/class/infiniband").
std::vector<NicCounter> nic_counters(const std::string& sysfs);

std::string prometheus_text(const std::vector<ProcessSample>& processes,
                            const std::vector<NicCounter>& nics);

}  // namespace twinpath::tools
