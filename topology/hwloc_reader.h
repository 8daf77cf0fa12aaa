#pragma once
// Reads a Machine through hwloc: the machine we run on, an XML file of lstopo (versions 1 and 2),
// or a folder that holds another machine's /sys and /proc.
//
// hwloc builds its PCI tree from configuration space; where that is unreadable it loses every
// bridge without a word.  cross_check.h finds that out.
//
// Threads: any, one call at a time for a folder: hwloc takes its root from the environment, which
// is changed for the time of the call (tools and tests only; the plugin reads the live machine).
#include <optional>
#include <string>
#include <string_view>

#include "topology/machine.h"

namespace twinpath {

// Whether hwloc can be used here; the reason why not.
bool hwloc_available(std::string& why_not);

// nullopt and `why` (object, cause, remedy in one line) when there is nothing to read.
std::optional<Machine> read_hwloc_live(std::string& why);
std::optional<Machine> read_hwloc_xml(const std::string& path, std::string& why);
std::optional<Machine> read_hwloc_xml_text(std::string_view text, std::string& why);
std::optional<Machine> read_hwloc_folder(const std::string& root, std::string& why);

}  // namespace twinpath
