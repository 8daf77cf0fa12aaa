#include "topology/read/sysfs_reader.h"

#include "topology/model/finish.h"

namespace twinpath {

std::optional<Machine> read_sysfs(const std::string& root_folder, std::string& why) {
  const FileRoot root(root_folder);
  if (!root.exists()) {
    why = root_folder + ": no such folder";
    return std::nullopt;
  }
  if (!root.has("/sys/devices")) {
    why = root_folder + ": has no sys/devices; it must be the root above sys and proc";
    return std::nullopt;
  }
  Machine machine;
  machine.sources.push_back("sysfs " + root_folder);
  read_host(root, machine);
  read_cpus_and_nodes(root, machine);
  read_pci(root, machine);
  read_hcas(root, machine);
  finish_machine(machine);
  return machine;
}

}  // namespace twinpath
