#pragma once
// What software adapters a process shows: the value of TWINPATH_SOFT_HCAS.
//
//   name[,key=value...][,name[,key=value...]...]      or just a number: that many adapters
//
// keys: speed=GBITS (1..6400), ports=N (1..8), pci=BDF or absolute sysfs path, mtu=256..4096,
// state=up|down, link=roce|ib (ib: ports with LIDs that take no packet without a global header; the
// soft HCA finds nobody by a LID), ece=BITS (1..255: options of enhanced connection establishment,
// which mean nothing), pkeys=VALUE[:VALUE...] (the partition table of its ports, 0..65535; nobody
// compares them on the way), peermem=yes|no (yes: GPU memory by its address, too, as where
// nvidia_peermem is loaded; no, which it is by itself: by dma-buf only),
// place=below=BDF|bridge=BDF|numa=N (where decisions take it to sit; NCCL does not learn it),
// mlx5=WORD[:WORD...] (mlx5/variant.h: in what it differs from the strictest mlx5 adapter),
// like=NAME (whose adapter it is like: personality.h).  An item without '=' begins the next
// adapter, or as many as it says.  One that is like another's and called softN gets N and that
// one's names instead: bnxt_re0.
//   soft0,speed=400,pci=0000:17:00.0,soft1,speed=200,ports=2
//   2,like=mana
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/fabric/soft/mlx5/variant.h"
#include "plugin/fabric/soft/personality.h"

namespace twinpath::soft {

struct DeviceSpec {
  std::string name;
  int speed_gbps = 0;  // parsed: 1 or more
  int ports = 1;
  std::string pci_path;  // sysfs path; empty: none
  std::string place;     // words of place_soft_hca (topology/model/place.h); empty: pci_path
  int mtu = 4096;
  bool up = true;
  bool infiniband = false;  // what its ports say they are
  std::vector<std::uint16_t> pkeys{0xffff};
  bool peermem = false;   // GPU memory by its address, too
  std::uint32_t ece = 0;  // options that it offers beyond the standard; 0: it knows none
  const Personality* like = &own_personality();
  mlx5::Variant mlx5;
  bool operator==(const DeviceSpec&) const = default;
};

// nullopt and `why` (quoting the item) for text that is not a specification.
std::optional<std::vector<DeviceSpec>> parse_device_specs(std::string_view text, std::string& why);

}  // namespace twinpath::soft
