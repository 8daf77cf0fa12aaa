#pragma once
// What software adapters a process shows: the value of TWINPATH_SOFT_HCAS.
//
//   name[,key=value...][,name[,key=value...]...]      or just a number: that many adapters
//
// keys: speed=GBITS (1..6400), ports=N (1..8), pci=BDF or absolute sysfs path, mtu=256..4096,
// state=up|down, place=below=BDF|bridge=BDF|numa=N (where decisions take it to sit; NCCL does not
// learn it).  An item without '=' begins the next adapter.
//   soft0,speed=400,pci=0000:17:00.0,soft1,speed=200,ports=2
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinpath::soft {

struct DeviceSpec {
  std::string name;
  int speed_gbps = 400;
  int ports = 1;
  std::string pci_path;  // sysfs path; empty: none
  std::string place;     // words of place_soft_hca (topology/model/place.h); empty: pci_path
  int mtu = 4096;
  bool up = true;
  bool operator==(const DeviceSpec&) const = default;
};

// nullopt and `why` (quoting the item) for text that is not a specification.
std::optional<std::vector<DeviceSpec>> parse_device_specs(std::string_view text, std::string& why);

}  // namespace twinpath::soft
