#include "plugin/rdma/live_ports.h"

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"
#include "plugin/fabric/port.h"
#include "plugin/rdma/partition.h"

namespace twinpath {

LivePorts::LivePorts(const Fabric& fabric, std::string sysfs)
    : fabric_(fabric), sysfs_(std::move(sysfs)) {
  for (const Port& port : fabric.ports) seen_.push_back({0, port, 0, {}});
}

bool LivePorts::still_there(const Port& port, const GidEntry& gid) const {
  // An InfiniBand port without a table goes by its LID.
  if (port.gids.empty()) return true;
  ibv_gid now{};
  errno = 0;
  if (fabric_.verbs.query_gid(port.context, port.number, gid.index, &now) == 0)
    return std::memcmp(now.raw, gid.gid.raw, sizeof now.raw) == 0;
  // As with the port: who may not ask learns it by the queue pair.
  return is_refusal(errno);
}

Result<LivePort> LivePorts::look(const Port& port, std::uint32_t changes, const Config& config,
                                 std::string& why) {
  std::lock_guard hold(mutex_);
  Seen& seen = seen_[static_cast<std::size_t>(&port - fabric_.ports.data())];
  ibv_port_attr attr{};
  int entries = 0;
  // One that cannot be asked keeps what was known: making the queue pair says what is wrong.
  if (fabric_.verbs.query_port(port.context, port.number, &attr) == 0) {
    seen.port.active_mtu = attr.active_mtu;
    seen.port.lid = attr.lid;
    seen.port.grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
    entries = attr.gid_tbl_len;
    seen.partitions = attr.pkey_tbl_len;
  }
  const auto partition = find_partition(fabric_.verbs, port, seen.partitions, config, why);
  if (!partition) return partition.status();
  const auto choose = [&]() -> Result<LivePort> {
    std::string remark;
    auto gid = choose_gid(seen.port, config, remark);
    if (!gid) {
      why = remark;
      return gid.status();
    }
    if (!remark.empty() && seen.remark != remark) TP_WARN("%s", remark.c_str());
    seen.remark = remark;
    if (still_there(seen.port, *gid))
      return LivePort{*gid, seen.port.active_mtu, seen.port.lid, seen.port.grh_required,
                      *partition};
    why = port.device + ":" + std::to_string(port.number) + ": GID index " +
          std::to_string(gid->index) + " has just changed; connect again";
    return Status::system;
  };
  if (seen.changes == changes)
    if (auto as_known = choose()) return as_known;
  seen.changes = changes;
  if (entries > 0) seen.port.gids = read_gids(fabric_, seen.port, entries, sysfs_);
  return choose();
}

}  // namespace twinpath
