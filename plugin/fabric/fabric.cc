#include "plugin/fabric/fabric.h"

#include <array>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/port.h"
#include "plugin/fabric/soft_hca.h"

namespace twinpath {
namespace {

// Without it a child made by fork() may take over pages that the adapter still writes to.  Has to
// come before the first registration; soft adapters share pages and need none of it.
void protect_forks(const Verbs& verbs) {
  if (verbs.fork_init == nullptr) return;
  // A kernel that copies pinned pages on fork needs none of it, and it would do harm: a child loses
  // every page that holds a registration, with whatever else lies on it.
  if (verbs.is_fork_initialized != nullptr && verbs.is_fork_initialized() == IBV_FORK_UNNEEDED)
    return;
  const int rc = verbs.fork_init();
  if (rc == 0) return;
  std::array<char, 128> buffer{};
  TP_WARN(
      "fork protection of libibverbs could not be switched on (%s): memory was registered "
      "before; set RDMAV_FORK_SAFE=1 if this program forks",
      strerror_r(rc, buffer.data(), buffer.size()));
}

}  // namespace

Result<std::unique_ptr<Fabric>> open_fabric(const Config& config) {
  auto fabric = std::make_unique<Fabric>();
  const bool soft = config.fabric == FabricChoice::soft;
  fabric->kind = soft ? FabricKind::soft : FabricKind::verbs;
  if (config.ib_disable) {
    TP_INFO(net, "NCCL_IB_DISABLE=1: no device is offered");
    return fabric;
  }

  std::string why;
  if (soft) {
    const SoftHca* const hca = open_soft_hca(why);
    if (hca == nullptr || !hca->load(fabric->verbs, config, why)) {
      TP_WARN("the software HCA cannot be set up: %s", why.c_str());
      // That its library is not installed is no setting's fault.
      return hca == nullptr ? Status::unsupported : Status::bad_argument;
    }
  } else if (load_libibverbs(fabric->verbs, why)) {
    protect_forks(fabric->verbs);
  } else {
    TP_WARN("no RDMA adapter was found: %s; install rdma-core%s", why.c_str(),
            soft_hca_is_there() ? ", or set TWINPATH_FABRIC=soft for the software HCA" : "");
    return fabric;
  }

  // Libraries without it, and hosts without such adapters, are most.
  Mlx5 mlx5;
  std::string without;
  const bool ask = !soft && config.ib_data_direct != 0 && load_libmlx5(mlx5, without);
  TP_TRY(find_ports(*fabric, config, "/sys", why, ask ? &mlx5 : nullptr));
  if (fabric->ports.empty()) {
    TP_WARN("no usable %s was found: %s%s", soft ? "port of the software HCA" : "RDMA adapter",
            why.c_str(),
            !soft && soft_hca_is_there() ? "; TWINPATH_FABRIC=soft gives the software HCA" : "");
  }
  return fabric;
}

}  // namespace twinpath
