#pragma once
// Tries what only a try can tell: registering memory of each GPU on each HCA.  Real adapters and
// CUDA only; elsewhere it says why nothing was tried.
#include <string>

#include "tools/topo/input.h"
#include "tools/topo/report.h"

namespace twinpath::tools::topo {

struct ProbeRun {
  PairProbes results;
  std::string why_not;  // nothing was tried because ...; empty when something was
};
ProbeRun probe_pairs(const Input& input, const Config& config);
std::string probe_text(const Report& report, const ProbeRun& run);

}  // namespace twinpath::tools::topo
