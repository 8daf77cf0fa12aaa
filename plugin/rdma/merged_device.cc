#include "plugin/rdma/merged_device.h"

#include <algorithm>

namespace twinpath {
namespace {

// An id of 16 bits with a sign: a mark that it is of merged ports, and below it a bit per plane.
constexpr std::size_t kPlaneBits = 14;
constexpr int kMerged = 1 << kPlaneBits;

}  // namespace

void Planes::note(int plane) {
  if (number_of(plane) == known_.size()) known_.push_back(plane);
}

std::size_t Planes::number_of(int plane) const {
  return static_cast<std::size_t>(std::find(known_.begin(), known_.end(), plane) - known_.begin());
}

int Planes::merged_id(std::span<const DeviceProps> members) const {
  int id = kMerged;
  bool named = false;
  for (const DeviceProps& m : members) {
    const std::size_t number = number_of(m.plane_id);
    if (number >= kPlaneBits) return -1;
    id |= 1 << number;
    named = named || m.plane_id >= 0;
  }
  return named ? id : -1;
}

std::uint64_t mix_guid(std::uint64_t guid, std::uint64_t number) {
  guid ^= number + 0x9e3779b97f4a7c15u + (guid << 6) + (guid >> 2);
  return guid;
}

DeviceProps merge_properties(std::span<const DeviceProps> members, const Planes& planes) {
  DeviceProps p = members[0];
  if (members.size() > 1) p.plane_id = planes.merged_id(members);
  for (const DeviceProps& m : members.subspan(1)) {
    p.name += "+" + m.name;
    p.guid = mix_guid(p.guid, m.guid);
    p.gpu_direct = p.gpu_direct && m.gpu_direct;
    p.dmabuf = p.dmabuf && m.dmabuf;
    p.force_flush = p.force_flush || m.force_flush;
    p.speed_mbps += m.speed_mbps;
    if (p.rail_id != m.rail_id) p.rail_id = -1;
    p.max_comms = std::min(p.max_comms, m.max_comms);
    p.max_message_bytes = std::min(p.max_message_bytes, m.max_message_bytes);
    p.members.insert(p.members.end(), m.members.begin(), m.members.end());
  }
  if (p.guid == 0) p.guid = 1;
  return p;
}

}  // namespace twinpath
