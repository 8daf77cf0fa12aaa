#pragma once
// Which HCAs serve a GPU, best first, and which are not used and why.
//
// Pure.  Threads: any.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "topology/model/distance.h"
#include "topology/model/reason.h"

namespace twinpath {

// One HCA as one GPU sees it.
struct HcaCandidate {
  int hca = 0;  // the caller's index
  Distance distance = Distance::unknown;
  double port_gbps = 0;  // 0 in rates: not known, taken as fast enough
  double pcie_gbs = 0;   // GB/s
  int load = 0;          // GPUs that it serves already
  std::optional<int> rail;
  bool active = true;  // a port is
  bool management = false;
  bool excluded = false;  // by the user
  bool foreign = false;   // neither InfiniBand nor RoCE
  std::uint64_t bus = 0;  // orders what is equal otherwise
};

struct HcaChoice {
  int hca = 0;
  Reason refused = Reason::none;  // none: may be used
  friend bool operator==(const HcaChoice&, const HcaChoice&) = default;
};

// All candidates: usable ones first, best first, then the refused ones by bus.  A rail that the
// peer has counts more than distance: another rail would cross the spine of the fabric.
std::vector<HcaChoice> order_hcas(std::span<const HcaCandidate> candidates,
                                  std::optional<int> peer_rail = std::nullopt);

// The best HCA for each GPU of a node, -1 where none is usable.  row[g] is GPU g's view; `load` of
// the candidates is filled here, so GPUs with equal choices share them out.
std::vector<int> assign_hcas(std::vector<std::vector<HcaCandidate>> rows);

// An HCA whose PCIe link carries less than a quarter of its port's rate is there for management:
// the NVLink switches' own ConnectX of some hosts has two lanes.
bool looks_like_management(double port_gbps, double pcie_gbs);

}  // namespace twinpath
