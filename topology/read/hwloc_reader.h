#pragma once
// Reads a Machine through libhwloc: the machine we run on, or a folder that holds another machine's
// /sys and /proc.  Never a file that a user gives: the library trusts what it reads, and damage
// ends the process.  XML of hwloc has a reader of our own (hwloc_xml.h).
//
// hwloc builds its PCI tree from configuration space; where that is unreadable it loses every
// bridge without a word.  cross_check.h finds that out.
//
// Threads: any, one call at a time for a folder: hwloc takes its root from the environment, which
// is changed for the time of the call (tests only: they compare it with our own reader).
#include <optional>
#include <string>

#include "topology/model/machine.h"

namespace twinpath {

// Whether hwloc can be used here; the reason why not.
bool hwloc_available(std::string& why_not);

// nullopt and `why` (object, cause, remedy in one line) when there is nothing to read.
std::optional<Machine> read_hwloc_live(std::string& why);
std::optional<Machine> read_hwloc_folder(const std::string& root, std::string& why);

}  // namespace twinpath
