#include "plugin/fabric/soft/address.h"

#include <cerrno>
#include <memory>

#include "plugin/fabric/soft/control.h"

namespace twinpath::soft {
namespace {

// No two ports have the same GIDs, and there is no wire: a locally administered MAC that tells the
// GIDs of different ports apart.
void make_mac(const ibv_gid& gid, std::uint8_t (&mac)[6]) {
  std::uint32_t hash = 2166136261u;
  for (const std::uint8_t byte : gid.raw) hash = (hash ^ byte) * 16777619u;
  mac[0] = 0x02;
  mac[1] = gid.raw[10] == 0xff ? 0x04 : 0x06;  // IPv4 or IPv6
  for (unsigned i = 0; i < 4; ++i) mac[2 + i] = static_cast<std::uint8_t>(hash >> (24 - 8 * i));
}

}  // namespace

ibv_ah* create_ah(ibv_pd* pd, const ibv_ah_attr& attr, bool ethernet) {
  ibv_gid gid;
  const bool global = attr.is_global != 0;
  // Ethernet ports have no LIDs: without a GID there is no address.
  if ((!global && ethernet) || attr.port_num == 0 ||
      query_gid(pd->context, attr.port_num, global ? attr.grh.sgid_index : 0, &gid) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto handle = std::make_unique<AddressHandle>();
  handle->context = pd->context;
  handle->pd = pd;
  handle->attr = attr;
  handle->ethernet = ethernet;
  if (ethernet) make_mac(attr.grh.dgid, handle->rmac);
  return handle.release();
}

int destroy_ah(ibv_ah* ah) {
  delete static_cast<AddressHandle*>(ah);
  return 0;
}

}  // namespace twinpath::soft
