#pragma once
// The report as a picture: a row for each NUMA node, host bridges and switches as boxes, GPUs and
// HCAs in them, a curve from each GPU to its HCA, problems in red.
#include <string>

#include "tools/topo/report.h"

namespace twinpath::tools::topo {

std::string report_svg(const Report& report);

}  // namespace twinpath::tools::topo
