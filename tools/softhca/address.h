#pragma once
// What the facades of libibverbs and libmlx5 know of each other's objects.  libmlx5 asks through
// the functions below, which libibverbs exports under a version of its own (SOFTHCA_PRIVATE): it
// must not link the software HCA, whose adapters are one set a process.
//
// Threads: any.  Ownership: an address handle is ibv_destroy_ah's to free.
#include "plugin/fabric/soft/address.h"
#include "plugin/fabric/soft/masked_atomic.h"
#include "plugin/fabric/soft/mlx5/variant.h"

extern "C" {
twinpath::soft::AddressHandle* softhca_address(ibv_ah* handle);
// 24 bits; a parent domain has that of its protection domain.
std::uint32_t softhca_pd_number(ibv_pd* pd);
// What kind of mlx5 adapter an opened one is (TWINPATH_SOFT_HCAS=...,mlx5=WORDS).
void softhca_mlx5_variant(ibv_context* context, twinpath::soft::mlx5::Variant* variant);
int softhca_post_masked_atomic(ibv_qp* qp, const twinpath::soft::MaskedAtomic& atomic);
}
