#pragma once
// A fabric is a supplier of verbs, real or soft, opened once per process with the ports that
// carry traffic.
//
// Threads: open_fabric from one thread; the result is immutable afterwards and may be read
// from all.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/limits.h"
#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/fabric/verbs.h"

namespace twinpath {

enum class FabricKind { verbs, soft };

struct GidEntry {
  int index = 0;
  ibv_gid gid{};
  int roce_version = 0;  // 1 or 2 for RoCE; 0 for InfiniBand or unknown
};

// Where a port is attached, in networks of several rails and planes; nothing tells it but the
// user's NCCL_IB_HCA.  NCCL keeps rings on one rail, and never joins two planes.
struct NetworkPlace {
  int rail = -1;   // 0..kMostRail, -1: not named
  int plane = -1;  // 0..kMostPlane, -1: not named
  friend bool operator==(const NetworkPlace&, const NetworkPlace&) = default;
};
// NCCL carries both in 16 bits; a plane above this would look like those of merged devices.
inline constexpr int kMostRail = 0x7fff, kMostPlane = 0x3fff;

// One active port of one HCA, as found at start.  GIDs, MTU and LID may change later: connections
// ask again (plugin/rdma/live_ports.h).
struct Port {
  std::string device;  // "mlx5_0", "soft0"
  std::uint8_t number = 1;
  // Shown to NCCL: device, behind it "_dma" if data_direct, and ":port" when several are used.
  std::string name;
  std::string pci_path;  // realpath in sysfs ending in a BDF; empty when unknown
  // Of a virtual function, where the kernel tells: the same of the physical one.
  std::string physical_function;
  // The same of the data-direct function (of a ConnectX-8) that moves GPU memory for this port;
  // empty: the port's own does.
  std::string data_direct;
  std::uint64_t guid = 0;     // node GUID (host order), never 0
  int speed_mbps = 0;         // data rate of link width x speed
  NetworkPlace place;         // as the user named it
  bool roce = false;          // Ethernet link layer
  bool grh_required = false;  // InfiniBand: takes no packet without a global header
  ibv_mtu active_mtu = IBV_MTU_1024;
  std::uint16_t lid = 0;
  std::uint64_t max_message_bytes = 0;
  int max_qp = 0;
  bool dmabuf = false;   // reg_dmabuf_mr exists and works for this context
  bool peermem = false;  // reg_mr accepts CUDA pointers (nvidia_peermem loaded, or soft)
  // Work requests may hold their data themselves, as far as a queue pair grants it (provider.h).
  bool inline_data = false;
  std::vector<GidEntry> gids;
  ibv_context* context = nullptr;  // owned by the Fabric
  ibv_pd* pd = nullptr;            // owned by the Fabric; one per device
};

struct Fabric {
  FabricKind kind = FabricKind::soft;
  Verbs verbs;
  std::vector<Port> ports;  // PCI order, then port number

  // keeps contexts and PDs alive; destruction order PD, then context
  std::vector<Owned<ibv_context>> contexts;
  std::vector<Owned<ibv_pd>> pds;
};

// Chooses by config.fabric: verbs = real adapters only; soft = software HCA only; automatic =
// real adapters, and if there is none no device at all (logged once with the reason and the
// setting that gives the soft HCA).  An empty `ports` is not an error.  Applies NCCL_IB_HCA
// and NCCL_IB_DISABLE, leaves out ports that are not ACTIVE (named in one info line each; a
// warning when NCCL_IB_HCA named it).
Result<std::unique_ptr<Fabric>> open_fabric(const Config& config);

// --- pure helpers, table-tested -------------------------------------------------------

// NCCL_IB_HCA: "[^][=]name[:port[:rail[:plane]]],..." ; ^ excludes, = wants exact names instead of
// prefixes; a number that is left out is "any" or "none"; at most 32 entries.
class HcaFilter {
 public:
  // nullopt and `why` for text that is not a filter.
  static std::optional<HcaFilter> parse(std::string_view text, std::string& why);
  bool accepts(std::string_view device, int port) const;
  // What the first entry that takes the port says of it.  Nothing where the filter excludes.
  NetworkPlace place(std::string_view device, int port) const;
  bool empty() const { return entries_.empty(); }
  bool excludes() const { return exclude_; }
  // Entries that match no (device, port) of `present`: for the "unknown device name" message.
  std::vector<std::string> unmatched(const std::vector<std::pair<std::string, int>>& present) const;

 private:
  struct Entry {
    std::string name;
    int port = -1;  // -1: any
    NetworkPlace place;
  };
  bool entry_matches(const Entry& e, std::string_view device, int port) const;
  bool exclude_ = false, exact_ = false;
  std::vector<Entry> entries_;
};

// The GID index for a port (NCCL_IB_GID_INDEX, _ROCE_VERSION_NUM, _ADDR_FAMILY, _ADDR_RANGE).
// InfiniBand ports: 0.  Gives bad_argument with `why` when the wanted index is not in the
// table or holds an all-zero GID (names port, index, and which indices exist).  With a GID, `why`
// is untouched, or says which of those settings no entry fits, and lists the entries.
Result<GidEntry> choose_gid(const Port& port, const Config& config, std::string& why);

// ibv_port_attr's active_speed/active_speed_ex code and active_width to Mb/s of data; 0 for codes
// that are not known.
int port_speed_mbps(std::uint32_t speed_code, std::uint8_t width_code);

}  // namespace twinpath
