#pragma once
// Reads a Machine from /sys and /proc below a root folder: this machine ("/"), a fake root, an
// unpacked dump.  Needs no library and no privilege; what privilege would add (ACS, VPD) stays
// unknown without it.
//
// The tree comes from the real paths of the devices, which the kernel always shows; configuration
// space only adds port kinds and ACS.  Only GPUs, HCAs, data-direct functions and what lies above
// them are entered.
#include <optional>
#include <string>

#include "topology/model/machine.h"
#include "topology/read/file_root.h"

namespace twinpath {

// nullopt and `why` when there is no such folder or no sysfs in it.
std::optional<Machine> read_sysfs(const std::string& root, std::string& why);

// --- the parts, for read_sysfs and tests
void read_cpus_and_nodes(const FileRoot& root, Machine& machine);
void read_pci(const FileRoot& root, Machine& machine);
void read_hcas(const FileRoot& root, Machine& machine);
void read_host(const FileRoot& root, Machine& machine);

// Enters a function with everything above it and returns it; `path` is its real path in sysfs.
PciFunction read_function(const FileRoot& root, const std::string& path, Machine& machine);

// "0-3,8" or "0000000f,..." as a sorted list of numbers below 65536; nullopt for anything else.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);
std::optional<std::vector<int>> parse_cpu_mask(const std::string& text);
// "32.0 GT/s PCIe" is 32; nullopt for "Unknown".
std::optional<double> parse_link_speed(const std::string& text);

}  // namespace twinpath
