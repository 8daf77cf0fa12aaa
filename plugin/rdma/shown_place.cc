#include "plugin/rdma/shown_place.h"

#include "plugin/fabric/port.h"

namespace twinpath {
namespace {

// Two functions of one card, 00.0 and 00.1, are its ports.
std::string first_function(std::string path) {
  if (!pci_address(path).empty()) path.back() = '0';
  return path;
}

std::string path_of(const Port& port, bool merge_vfs) {
  if (!port.data_direct.empty()) return port.data_direct;
  if (port.physical_function.empty()) return first_function(port.pci_path);
  return merge_vfs ? first_function(port.physical_function) : port.pci_path;
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
