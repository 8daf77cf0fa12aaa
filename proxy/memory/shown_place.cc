#include "proxy/memory/shown_place.h"

namespace twinpath {
namespace {

const std::string& path_of(const Port& port, bool merge_vfs) {
  if (!port.data_direct.empty()) return port.data_direct;
  return merge_vfs && !port.physical_function.empty() ? port.physical_function : port.pci_path;
}

}  // namespace

ShownPlace shown_place(std::span<const Port> ports, std::size_t index, bool merge_vfs) {
  const Port& own = ports[index];
  ShownPlace place{path_of(own, merge_vfs), own.number};
  if (place.pci_path.empty()) return place;
  for (const Port& before : ports.first(index))
    if (before.device != own.device && path_of(before, merge_vfs) == place.pci_path) ++place.port;
  return place;
}

}  // namespace twinpath
