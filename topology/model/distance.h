#pragma once
// How far a GPU and an HCA are from each other on the PCIe tree, nearest first.  The order is
// used: a smaller value is nearer.
#include <cstdint>
#include <optional>
#include <string_view>

namespace twinpath {

enum class Distance : std::uint8_t {
  self,     // functions of one device
  pix,      // below one switch
  pxb,      // several switches, no root complex
  c2c,      // the HCA is on the CPU that the GPU is coherently linked to
  phb,      // one host bridge, different root ports
  node,     // other host bridge, same NUMA node
  sock,     // other NUMA node, same package
  sys,      // other package
  unknown,  // locality not reported
};
inline constexpr int kDistances = 9;

// "SELF", "PIX", ... "UNK".
std::string_view name_of(Distance d);
// Accepts those names in any case; LOC is SELF, P2C is C2C.
std::optional<Distance> parse_distance(std::string_view text);

}  // namespace twinpath
