#pragma once
// XML of hwloc (lstopo), versions 1 and 2, read by ourselves: libhwloc's own parser trusts its
// file, and a damaged byte ends the process.  Only what a Machine needs is looked at: NUMA nodes,
// packages, PCI bridges and devices, adapters.
//
// Threads: any.
#include <optional>
#include <string>
#include <string_view>

#include "topology/model/machine.h"

namespace twinpath {

// nullopt and `why` (one line, with the line of the text where there is one) for text that is not
// such a file or cannot be trusted.
std::optional<Machine> parse_hwloc_xml(std::string_view text, std::string& why);
// The same of a file; `why` begins with the path.
std::optional<Machine> read_hwloc_xml(const std::string& path, std::string& why);

}  // namespace twinpath
