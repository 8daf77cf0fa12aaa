#pragma once
// What a job started here and now would get besides the machine's devices: limits, libraries,
// settings, and the address that the plugin would take on each port.  Read once, judged by
// check_job.cc, compared between hosts by compare.cc.
//
// Threads: read_job_facts() before there are others (it takes settings from NCCL's files into the
// environment); the rest are plain values.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/ip_range.h"

namespace twinpath::tools::topo {

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

// A port as the plugin offers it to NCCL.
struct RailFacts {
  std::string name;  // "mlx5_0", "mlx5_0:2" where several ports are used
  bool roce = false;
  int mbps = 0;
  int mtu = 0;      // bytes of one packet
  std::string gid;  // text of the address that connections take; empty: none can be used
  // The same with the length of its interface's network; nullopt on InfiniBand, for link-local
  // addresses, and where no interface has it.
  std::optional<IpRange> network;
  std::string complaint;  // of the choice: no address, or not the one asked for
};

// A value in a file of NCCL's that another one goes before.
struct Contradiction {
  std::string name, file, in_file, in_effect;
};

struct JobFacts {
  std::optional<std::uint64_t> descriptors;       // RLIMIT_NOFILE, soft
  std::optional<std::uint64_t> most_descriptors;  // and hard
  std::optional<std::uint64_t> processes;         // least of RLIMIT_NPROC and pids.max
  std::string held;  // why few processors can be used; empty: enough are there
  // File and "0.2.0 (commit)" of the plugin that NCCL_NET_PLUGIN or the installation gives; the
  // version is empty where the file tells none.
  std::string plugin, plugin_version, no_plugin;
  std::string own_version;  // of this program
  std::string nccl_version, no_nccl;
  std::map<std::string, std::string> environment;  // TWINPATH_* and NCCL_*, files included
  std::vector<Contradiction> contradictions;
  std::vector<std::string> refused;  // a setting and why its value is not taken
  std::vector<std::string> unread;   // names that nobody reads, files that cannot be read
  std::vector<RailFacts> rails;
  std::string no_rails;
  // Connections go by network though the user has not said so (plugin/fabric/by_network.h), by so
  // many bits of IPv4 addresses.
  std::optional<int> by_network;
  std::string gdr_not_tried;  // why; empty: it was tried
};

JobFacts read_job_facts(const Config& config);

// "0.2.0 (0123456789ab)" in the bytes of a library of ours; empty: none.  Pure.
std::string version_in(std::string_view bytes);
// Whether two rails can reach each other without a router: IPv4 by the first `prefix` bits, IPv6
// by 64.  Pure; as the plugin's choice by network has it.
bool on_one_network(const IpRange& a, const IpRange& b, int prefix);

}  // namespace twinpath::tools::topo
