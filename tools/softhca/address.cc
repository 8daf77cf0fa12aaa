#include "tools/softhca/address.h"

#include "plugin/fabric/soft/extended.h"
#include "tools/softhca/facade.h"

using namespace twinpath::softhca;
namespace soft = twinpath::soft;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return soft::create_ah(pd, *attr, facade()->link_layer == LinkLayer::ethernet);
}

int ibv_destroy_ah(ibv_ah* ah) { return soft::destroy_ah(ah); }

ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, std::uint8_t) {
  return unsupported<ibv_ah>();
}

int ibv_init_ah_from_wc(ibv_context*, std::uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  errno = EOPNOTSUPP;
  return -1;
}

soft::AddressHandle* softhca_address(ibv_ah* handle) {
  return static_cast<soft::AddressHandle*>(handle);
}

std::uint32_t softhca_pd_number(ibv_pd* pd) { return soft::pd_number(real_pd(pd)); }

void softhca_mlx5_variant(ibv_context* context, soft::mlx5::Variant* variant) {
  *variant = soft::mlx5_variant(context);
}

int softhca_post_masked_atomic(ibv_qp* qp, const soft::MaskedAtomic& atomic) {
  return soft::post_masked_atomic(qp, atomic);
}

}  // extern "C"
