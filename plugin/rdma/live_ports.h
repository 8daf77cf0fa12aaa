#pragma once
// What may change of a port while the process runs, asked at each connect: its GID table, MTU,
// LID and addressing.  An address that is taken from a network interface and given back lies at
// another index afterwards, and a process may live for weeks.
//
// A connect costs one query of the port and one of the chosen entry.  The whole table is read
// again when the adapter told of a change, when that entry holds another GID by now, and when
// none fits.
//
// Threads: any.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/fabric/fabric.h"

namespace twinpath {

// As a connection that is made now uses the port.
struct LivePort {
  GidEntry gid;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint16_t lid = 0;
  bool grh_required = false;
  std::uint16_t pkey_index = 0;
};

class LivePorts {
 public:
  explicit LivePorts(const Fabric& fabric, std::string sysfs = "/sys");
  // `changes`: how often the adapter has told of other addresses (AsyncEvents).  bad_argument and
  // `why` as choose_gid() and find_partition() give them; a remark of choose_gid() is a warning.
  Result<LivePort> look(const Port& port, std::uint32_t changes, const Config& config,
                        std::string& why);
  // Whether that entry of the port's table still holds that GID: a queue made with it is mute
  // otherwise.  True where a security profile refuses the question.
  bool still_there(const Port& port, const GidEntry& gid) const;

 private:
  struct Seen {
    std::uint32_t changes = 0;
    Port port;
    int partitions = 0;  // entries of its table
    std::string remark;  // the last that choose_gid() made of it: said once
  };

  const Fabric& fabric_;
  const std::string sysfs_;
  std::mutex mutex_;
  std::vector<Seen> seen_;  // as Fabric::ports
};

}  // namespace twinpath
