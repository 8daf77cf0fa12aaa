// Address handles.  Nothing sends to one, because datagrams are not modelled; UCX asks with one
// whether a GID works, and programs that make queue pairs by themselves (NCCL's GDAKI, NVSHMEM)
// read the destination's MAC from it.
#include "tools/softhca/address.h"

#include <memory>

#include "plugin/fabric/soft/extended.h"
#include "tools/softhca/facade.h"

using namespace twinpath::softhca;

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

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  const bool ethernet = facade()->link_layer == LinkLayer::ethernet;
  ibv_gid gid;
  const bool global = attr->is_global != 0;
  // Ethernet ports have no LIDs: without a GID there is no address.
  if ((!global && ethernet) || attr->port_num == 0 ||
      verbs().query_gid(pd->context, attr->port_num, global ? attr->grh.sgid_index : 0, &gid) !=
          0) {
    errno = EINVAL;
    return nullptr;
  }
  auto handle = std::make_unique<AddressHandle>();
  handle->context = pd->context;
  handle->pd = pd;
  handle->attr = *attr;
  handle->ethernet = ethernet;
  if (ethernet) make_mac(attr->grh.dgid, handle->rmac);
  return handle.release();
}

int ibv_destroy_ah(ibv_ah* ah) {
  delete softhca_address(ah);
  return 0;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, std::uint8_t) {
  return unsupported<ibv_ah>();
}

int ibv_init_ah_from_wc(ibv_context*, std::uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  errno = EOPNOTSUPP;
  return -1;
}

AddressHandle* softhca_address(ibv_ah* handle) { return static_cast<AddressHandle*>(handle); }

std::uint32_t softhca_pd_number(ibv_pd* pd) { return twinpath::soft::pd_number(real_pd(pd)); }

}  // extern "C"
