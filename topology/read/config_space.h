#pragma once
// What we read from a PCI function's configuration space and vital product data.  Pure; all reads
// are bounded by what there is (64 bytes without privilege, 256 or 4096 with it).
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "topology/model/machine.h"

namespace twinpath {

// Role of a bridge by the port type of its PCI Express capability; unknown when out of reach.
BridgeKind port_kind(std::span<const std::uint8_t> config);
struct BusNumbers {
  std::uint8_t secondary = 0;
  std::uint8_t subordinate = 0;
};
// Of a function with a bridge header.
std::optional<BusNumbers> bus_numbers(std::span<const std::uint8_t> config);
// The ACS control register; nullopt when there is no such capability or it is out of reach.
std::optional<AcsControl> acs_control(std::span<const std::uint8_t> config);
// A keyword of the read-only part of the vital product data ("V3", "SN").
std::optional<std::string> vpd_keyword(std::span<const std::uint8_t> vpd, const char* keyword);

}  // namespace twinpath
