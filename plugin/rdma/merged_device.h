#pragma once
// How a device that NCCL merged from several ports stands in for them.  Pure.
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/transport.h"

namespace twinpath {

// The planes of all ports of this host, numbered in the order of the ports as NCCL's own transport
// numbers them, so that hosts with the same setting have the same ids; 0 is "not named".
class Planes {
 public:
  // Of every port once, before the first merge.
  void note(int plane);
  // The id of several ports together: NCCL never joins devices of different ids, and no single
  // port has this one.  -1 where no member names a plane, or the host has more than fit.
  int merged_id(std::span<const DeviceProps> members) const;

 private:
  std::size_t number_of(int plane) const;
  std::vector<int> known_{-1};
};

DeviceProps merge_properties(std::span<const DeviceProps> members, const Planes& planes);

// Another GUID out of one and a number: NCCL wants one of each device.
std::uint64_t mix_guid(std::uint64_t guid, std::uint64_t number);

}  // namespace twinpath
