#pragma once
// Counters as Prometheus' text format.
//
// Series are bounded: of each process the kMostPeers peers that it waited for longest (a peer in
// two communicators counts twice) have series of their own, the others are added up under peer
// "other".  A process that has ended has none.
#include <string>
#include <vector>

#include "tools/counters/nics.h"
#include "tools/counters/view.h"

namespace twinpath::tools {

inline constexpr std::size_t kMostPeers = 32;

// `node`: this host's name, for what belongs to no process.
std::string prometheus_text(const std::vector<ProcessSample>& processes,
                            const std::vector<NicCounter>& nics, const std::string& node);

}  // namespace twinpath::tools
