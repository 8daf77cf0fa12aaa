#pragma once
// The model behind the seam (plugin/fabric/soft_hca.h).
#include "plugin/fabric/soft_hca.h"

namespace twinpath::soft {

// That of this process, as the adapter is (hca.h).
const SoftHca& entry();

// reach.cc
std::unique_ptr<Reach> make_reach(ibv_qp* qp);

}  // namespace twinpath::soft
