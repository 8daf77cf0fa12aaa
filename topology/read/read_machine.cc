#include "topology/read/read_machine.h"

#include <sys/stat.h>

#include "plugin/base/file.h"
#include "topology/read/cross_check.h"
#include "topology/read/hwloc_reader.h"
#include "topology/read/hwloc_xml.h"
#include "topology/read/nccl_xml.h"
#include "topology/read/sysfs_reader.h"

namespace twinpath {
namespace {

std::optional<Machine> read_folder(const std::string& root, bool use_hwloc, std::string& why) {
  auto machine = read_sysfs(root, why);
  // What somebody gives us is never handed to libhwloc, which trusts it.
  if (!machine || !use_hwloc || root != "/") return machine;
  std::string why_not;
  const auto other = read_hwloc_live(why_not);
  if (!other) {
    machine->sources.push_back("no hwloc (" + why_not + ")");
    return machine;
  }
  return cross_checked(std::move(*machine), *other);
}

std::optional<Machine> read_file(const MachineInput& input, std::string& why) {
  const auto read = read_head(input.path, 65536, why);
  if (!read) {
    why = input.path + ": " + why;
    return std::nullopt;
  }
  const std::string& head = *read;
  // hwloc names the root <topology>, NCCL <system>; whichever comes first.
  const std::size_t hwloc = head.find("<topology");
  const std::size_t nccl = head.find("<system");
  if (hwloc < nccl && input.host != 0) {
    why = input.path + ": a topology of hwloc has one host, asked for number " +
          std::to_string(input.host);
    return std::nullopt;
  }
  if (hwloc < nccl) return read_hwloc_xml(input.path, why);
  if (nccl == std::string::npos) {
    why = input.path + ": neither a topology of hwloc (<topology>) nor of NCCL (<system>)";
    return std::nullopt;
  }
  auto machines = read_nccl_xml(input.path, why);
  if (!machines) return std::nullopt;
  if (input.host < 0 || static_cast<std::size_t>(input.host) >= machines->size()) {
    why = input.path + ": has " + std::to_string(machines->size()) + " host(s), asked for number " +
          std::to_string(input.host);
    return std::nullopt;
  }
  return std::move((*machines)[static_cast<std::size_t>(input.host)]);
}

void lay_over(Machine& machine, const MachineInput& input) {
  std::string why;
  const auto placed = read_nccl_xml(input.placement, why);
  if (!placed) {
    machine.warn("PLACEMENT_UNREADABLE", why, "correct or remove the topology file");
    return;
  }
  // Of several hosts the one that names most of our devices.
  const Machine* best = nullptr;
  std::size_t most = 0;
  for (const Machine& m : *placed) {
    const std::size_t n = named_in(machine, m);
    if (best == nullptr || n > most) {
      best = &m;
      most = n;
    }
  }
  (void)apply_nccl_placement(machine, *best, input.placement);
}

}  // namespace

std::optional<Machine> read_machine(const MachineInput& input, std::string& why) {
  const std::string path = input.path.empty() ? "/" : input.path;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    why = path + ": no such file or folder";
    return std::nullopt;
  }
  auto machine =
      S_ISDIR(status.st_mode) ? read_folder(path, input.use_hwloc, why) : read_file(input, why);
  if (machine && !input.placement.empty()) lay_over(*machine, input);
  return machine;
}

}  // namespace twinpath
