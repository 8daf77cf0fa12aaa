#pragma once
// What the PCI function says of itself: the table of the device model
// (plugin/fabric/soft/mlx5/capabilities.h) and beside it what only the kernel's driver asks for.
#include <cstdint>

#include "plugin/fabric/soft/mlx5/capabilities.h"
#include "tools/softhca/pci/layouts.h"

namespace twinpath::softhca::pci {

// The last numbers of objects, as logarithms: told, and kept to.
inline constexpr unsigned kLogMostQueues = 18;  // of each kind
inline constexpr unsigned kLogMostKeys = 14;    // the software HCA's table
inline constexpr unsigned kLogMostDomains = 16;
inline constexpr unsigned kLogMostEventQueues = 6;

inline constexpr unsigned kGids = 8, kPkeys = 128;

// What a function may have or not.
struct Offers {
  // Work requests change keys (UMR), as regions of dma-bufs need: a driver then registers all
  // memory so, and keeps keys ready by the thousand.
  bool key_changes = false;
  bool devx = true;  // user contexts of commands
  // Queue pairs may ask for the free-running clock, else for the adapter's alone.  Linux tells its
  // own ordinary queue pairs so from RoCE's capabilities, which there are then, too.
  bool free_running = true;
};

// Of the device model behind the function.
mlx5::DeviceFacts device_facts(const Offers& offers);

// Doorbell pages that the driver is given at once, as a logarithm: those of one page of its own
// (log_uar_page_sz).
inline constexpr mlx5::Field kLogDoorbellPage{0x490, 16};
inline constexpr unsigned kMostLogDoorbellPage = 4;  // of 64 KiB

// Behind the answer's header of 16 bytes; false for a kind that there is not.
bool write_capabilities(unsigned kind, unsigned function, const Offers& offers,
                        unsigned log_doorbell_page, Answer answer);

}  // namespace twinpath::softhca::pci
