#pragma once
// Address handles.  Nothing sends to one, because datagrams are not modelled; programs that make
// queue pairs by themselves read the destination's MAC from it, and UCX asks with one whether a GID
// works.
//
// Threads: any.
#include <infiniband/verbs.h>

#include <cstdint>

namespace twinpath::soft {

struct AddressHandle : ibv_ah {
  ibv_ah_attr attr;
  bool ethernet;
  std::uint8_t rmac[6];  // Ethernet: of the destination
  // Room for libmlx5's view of it, which must live as long as the handle.
  alignas(8) std::uint8_t vector[64];
};

// Null and EINVAL: the port has no such GID, or on Ethernet, none is given.
ibv_ah* create_ah(ibv_pd* pd, const ibv_ah_attr& attr, bool ethernet);
int destroy_ah(ibv_ah* ah);

}  // namespace twinpath::soft
