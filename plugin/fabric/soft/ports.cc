// Ports: what they answer, and taking them up and down.
#include <endian.h>

#include <algorithm>
#include <cerrno>

#include "plugin/fabric/fabric.h"
#include "plugin/fabric/soft/control.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/hca.h"
#include "plugin/fabric/soft/like.h"

namespace twinpath::soft {
namespace {

bool has_port(const SoftDevice& d, int port) { return port >= 1 && port <= d.spec.ports; }

ibv_mtu mtu_code(int bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

constexpr std::uint16_t kNdr = 128, kXdr = 256;

// The speed and width codes whose product comes nearest to the wanted rate from above; the
// encodings of the IB specification know no other rates.
std::uint16_t speed_codes(int gbps, bool xdr, ibv_port_attr& a) {
  struct Code {
    std::uint16_t speed;
    int lane_gbps;
  };
  constexpr Code kSpeeds[] = {{1, 2},   {2, 5},   {4, 10},     {16, 14},
                              {32, 25}, {64, 50}, {kNdr, 100}, {kXdr, 200}};
  constexpr std::pair<std::uint8_t, int> kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}};
  int best = 1 << 30;
  std::uint16_t chosen = xdr ? kXdr : kNdr;
  a.active_width = 8;
  for (auto [speed, lane] : kSpeeds) {
    if (speed == kXdr && !xdr) continue;
    for (auto [width, lanes] : kWidths) {
      // With as many lanes as cables have, where there is a choice.
      int rate = lane * lanes;
      if (rate >= gbps && (rate < best || (rate == best && lanes == 4))) {
        best = rate;
        chosen = speed;
        a.active_width = width;
      }
    }
  }
  a.active_speed = static_cast<std::uint8_t>(std::min(chosen, kNdr));
  return chosen;
}

// Libraries that know XDR have a wider field beside the old one.
template <class Attr>
void set_wide_speed(Attr& a, std::uint16_t speed) {
  if constexpr (requires { a.active_speed_ex; }) a.active_speed_ex = speed;
}

}  // namespace

std::uint16_t SoftDevice::lid(int port) const {
  const std::uint16_t given = lids[static_cast<std::size_t>(port)].load(std::memory_order_acquire);
  return given != 0 ? given : hca->addresses().lid(index, port);
}

int query_port(ibv_context* c, std::uint8_t port, ibv_port_attr* a) {
  auto& device = *soft(c)->soft_device;
  const Personality& like = device.like();
  if (!has_port(device, port)) return EINVAL;
  const bool up = device.port_up(port);
  *a = {};
  a->state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a->phys_state = up ? 5 : 3;  // LinkUp, Disabled
  a->max_mtu = IBV_MTU_4096;
  a->active_mtu = mtu_code(device.spec.mtu);
  a->gid_tbl_len = like.ports.gid_entries;
  a->pkey_tbl_len = static_cast<std::uint16_t>(device.spec.pkeys.size());
  a->max_msg_sz = like.ports.max_message;
  a->max_vl_num = 1;
  a->link_layer = IBV_LINK_LAYER_ETHERNET;
  a->lid = like.ports.roce_lid;
  if (device.spec.infiniband) {
    a->link_layer = IBV_LINK_LAYER_INFINIBAND;
    a->lid = device.lid(port);
    a->sm_lid = 1;
    if (!like.ports.infiniband) a->flags = IBV_QPF_GRH_REQUIRED;
  }
  const std::uint16_t speed = speed_codes(device.spec.speed_gbps, like.ports.xdr, *a);
  set_wide_speed(*a, speed);
  return 0;
}

int port_speed(ibv_context* c, std::uint8_t port) {
  const SoftDevice& device = *soft(c)->soft_device;
  if (!has_port(device, port)) return 0;
  ibv_port_attr a{};
  const std::uint16_t speed = speed_codes(device.spec.speed_gbps, device.like().ports.xdr, a);
  return port_speed_mbps(speed, a.active_width);
}

int query_gid(ibv_context* c, std::uint8_t port, int index, ibv_gid* gid) {
  SoftContext* context = soft(c);
  const SoftDevice& device = *context->soft_device;
  if (!has_port(device, port) || index < 0 || index >= device.like().ports.gid_entries) {
    errno = EINVAL;
    return -1;
  }
  *gid = context->hca->addresses().gid(device.index, port, gid_kind(device.like(), index));
  return 0;
}

const Personality& personality_of(ibv_context* c) { return like(c); }

int gid_version(const Verbs& table, ibv_context* c, int index) {
  if (table.alloc_pd != alloc_pd) return 2;
  return gid_kind(like(c), index).roce_version;
}

int query_gid_entry(ibv_context* c, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry) {
  const Personality& p = like(c);
  if (port > 255 || index >= p.ports.gid_entries) return EINVAL;
  const GidKind kind = gid_kind(p, static_cast<int>(index));
  if (!kind.used) return ENODATA;
  *entry = {};
  if (query_gid(c, static_cast<std::uint8_t>(port), static_cast<int>(index), &entry->gid) != 0)
    return EINVAL;
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = kind.roce_version == 2   ? IBV_GID_TYPE_ROCE_V2
                    : kind.roce_version == 1 ? IBV_GID_TYPE_ROCE_V1
                                             : IBV_GID_TYPE_IB;
  return 0;
}

int query_pkey(ibv_context* c, std::uint8_t port, int index, __be16* pkey) {
  const SoftDevice& device = *soft(c)->soft_device;
  if (!has_port(device, port) || index < 0 ||
      static_cast<std::size_t>(index) >= device.spec.pkeys.size()) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(device.spec.pkeys[static_cast<std::size_t>(index)]);
  return 0;
}

int set_port_state(ibv_context* c, std::uint8_t port, bool up) {
  SoftContext* context = soft(c);
  if (!has_port(*context->soft_device, port)) return EINVAL;
  context->hca->set_port(*context->soft_device, port, up);
  return 0;
}

int set_port_loss(ibv_context* c, std::uint8_t port, PortLoss loss) {
  SoftContext* context = soft(c);
  if (!has_port(*context->soft_device, port)) return EINVAL;
  context->hca->set_loss(*context->soft_device, port, loss);
  return 0;
}

void place_posted_writes(int gpu) {
  if (Hca* const hca = Hca::existing(); hca != nullptr && hca->posted().on())
    hca->posted().place(gpu);
}

int set_port_lid(ibv_context* c, std::uint8_t port, std::uint16_t lid) {
  SoftContext* context = soft(c);
  SoftDevice& device = *context->soft_device;
  if (!has_port(device, port) || !device.spec.infiniband ||
      !context->hca->addresses().is_of(device.index, lid))
    return EINVAL;
  for (int other = 1; other <= device.spec.ports; ++other)
    if (other != port && device.lid(other) == lid) return EINVAL;
  context->hca->set_lid(device, port, lid);
  return 0;
}

int set_port_rate(ibv_context* c, std::uint8_t port, std::uint32_t mbps) {
  SoftDevice& device = *soft(c)->soft_device;
  if (!has_port(device, port)) return EINVAL;
  device.rates[port].set(mbps);
  device.limited.store(true, std::memory_order_relaxed);
  return 0;
}

}  // namespace twinpath::soft
