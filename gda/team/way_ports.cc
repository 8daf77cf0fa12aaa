#include "gda/team/way_ports.h"

namespace twinpath::gda {
namespace {

bool same(std::uint64_t a, std::uint64_t b) { return a != 0 && a == b; }

}  // namespace

WayPorts choose_ways(const PortIds& here, const PortIds& there, int rank, int peer,
                     std::size_t context) {
  if (!same(here.first, there.second) && !same(here.second, there.first)) return {};
  const bool lower_swaps = (static_cast<std::size_t>(rank + peer) + context) % 2 == 0;
  const bool swapped = (rank < peer) == lower_swaps;
  return {swapped ? 1 : 0, swapped ? 0 : 1};
}

}  // namespace twinpath::gda
