#pragma once
// What a PCI function is, by vendor, device and class.  Used by every reader.
#include <string_view>

#include "topology/model/machine.h"

namespace twinpath {

inline constexpr std::uint16_t kNvidia = 0x10de;
inline constexpr std::uint16_t kAmdGpu = 0x1002;
inline constexpr std::uint16_t kMellanox = 0x15b3;
inline constexpr std::uint16_t kAmazon = 0x1d0f;
inline constexpr std::uint16_t kCray = 0x17db;

// A GPU of a vendor whose collectives library we serve: display (0x03) or processing accelerator
// (0x12) class.  Display chips of management controllers are not.
bool is_gpu(const PciId& id);
// A ConnectX data-direct function (class 0x0801).
bool is_dma_function(const PciId& id);
bool is_bridge(const PciId& id);
bool is_bluefield(const PciId& id);
// `driver`, where it is known: as the kernel names it, "mlx5_core".  It decides over an id that the
// short table lacks, because what a driver has taken is of its family.
HcaKind hca_kind(const PciId& id, std::string_view driver = {});
// Hca::foreign of an adapter by its id; empty for those of InfiniBand and RoCE and for what the
// short table lacks.
std::string_view foreign_transport(const PciId& id);
// "ConnectX-7", "EFA"; empty for what the short table lacks.
std::string_view model_name(const PciId& id);
// A Slingshot adapter.  It is no RDMA device to the kernel, only a network card, so readers find it
// by its id.
bool is_slingshot(const PciId& id);
// A bridge on a GPU's own board: AMD puts one or two switch levels there.
bool is_on_card_bridge(const PciId& id);
// A bridge that a hypervisor invents.  Amazon's only relay a true tree; their link tells nothing.
bool is_emulated_bridge(const PciId& id);

// Fills Bridge::on_card, emulated and, where `kind` is unknown, the kind by depth: below the host
// bridge come root port, upstream port, downstream port, upstream port, ...
void complete_bridges(Machine& machine);

}  // namespace twinpath
