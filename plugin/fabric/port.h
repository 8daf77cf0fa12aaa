#pragma once
// From a filled verbs table to the list of usable ports: the part of open_fabric that does not
// care where the table came from.  Tests give it a table of their own and a sysfs of files.
//
// Threads: one, during open_fabric.
#include <string>
#include <string_view>

#include "plugin/fabric/fabric.h"

namespace twinpath {

struct Mlx5;

// Opens the devices that the filter and their kind allow and appends their active ports to
// fabric.ports, in PCI order and with their final names.  `fabric` has kind and verbs set.
// `sysfs` is "/sys" but for tests.  `why_none` says in a few words why ports stayed empty.
// bad_argument when NCCL_IB_HCA cannot be read; what failed on one device is logged and leaves
// only that device out.  `mlx5`, of the same fabric or null: who is asked for data-direct
// functions; with one, fabric.verbs gets reg_data_direct.
Status find_ports(Fabric& fabric, const Config& config, const std::string& sysfs,
                  std::string& why_none, const Mlx5* mlx5 = nullptr);

// The entries of the port's GID table that are in use, of the first `count`; needs device, number,
// context and roce.  Any thread.
std::vector<GidEntry> read_gids(const Fabric& fabric, const Port& port, int count,
                                const std::string& sysfs);

// RoCE version from sysfs's text for a GID; 0 when unknown.
int roce_version_from_text(std::string_view text);

// The last component of a sysfs path when it is a PCI address ("0000:17:00.0"), else empty.
std::string_view pci_address(std::string_view path);

// Mb/s from sysfs's text for a port's rate, "800 Gb/sec (4X XDR)"; 0 when unknown.
int rate_from_text(std::string_view text);

const char* port_state_text(ibv_port_state state);

}  // namespace twinpath
