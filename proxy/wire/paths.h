#pragma once
// Which rail of each end every queue of a connection joins: the regular queues over the rails of
// the two devices, and behind them those in reserve, over standby rails.  Pure, and symmetric: both
// ends compute the same from what both said.
//
// A standby rail is a port that is no part of the device, for when no regular queue can be used. It
// comes behind the regular rails in every list of an end's rails.
#include <functional>
#include <vector>

#include "plugin/base/limits.h"

namespace twinpath {

struct EndRails {
  int regular = 1;
  int standby = 0;
};

// Rails, by number at each end.
struct QueuePath {
  int local = 0;
  int remote = 0;
  friend bool operator==(const QueuePath&, const QueuePath&) = default;
};

struct QueuePaths {
  std::vector<QueuePath> queues;
  int regular = 0;  // so many; those behind are in reserve, the best first
};

// `queues`: how many regular ones.  `reaches(local, remote)` says whether the two ports can talk,
// as far as both ends can tell; it is asked of standby paths only.  An end without standby rails
// joins its regular ones to the other's.
QueuePaths choose_paths(int queues, EndRails local, EndRails remote,
                        const std::function<bool(int local, int remote)>& reaches);

}  // namespace twinpath
