#pragma once
// What the facades of libibverbs and libmlx5 know of each other's objects.  libmlx5 asks through
// the functions below, which libibverbs exports under a version of its own (SOFTHCA_PRIVATE): it
// must not link the software HCA, whose adapters are one set a process.
//
// Threads: any.  Ownership: an address handle is ibv_destroy_ah's to free.
#include <infiniband/verbs.h>

#include <cstdint>

namespace twinpath::softhca {

// What ibv_create_ah makes.
struct AddressHandle : ibv_ah {
  ibv_ah_attr attr;
  bool ethernet;
  std::uint8_t rmac[6];  // Ethernet: of the destination
  // Room for libmlx5's view of it, which must live as long as the handle.
  alignas(8) std::uint8_t vector[64];
};

}  // namespace twinpath::softhca

extern "C" {
twinpath::softhca::AddressHandle* softhca_address(ibv_ah* handle);
// 24 bits; a parent domain has that of its protection domain.
std::uint32_t softhca_pd_number(ibv_pd* pd);
}
