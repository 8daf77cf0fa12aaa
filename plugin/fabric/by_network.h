#pragma once
// Whether connections go by network (NCCL_IB_SUBNET_AWARE_ROUTING), where the user does not say.
#include <optional>
#include <span>

#include "plugin/base/config.h"
#include "plugin/base/options.h"
#include "plugin/base/own_networks.h"
#include "plugin/fabric/fabric.h"

namespace twinpath {

// The network of a port's address; nullopt on InfiniBand, and where no interface has the address
// (the software HCA's).  Pure.
std::optional<OwnNetwork> network_of(const ibv_gid& gid, std::span<const OwnNetwork> networks);

// `config` as it holds for these ports.  Where the user has not set it, connections go by network
// if every port is on one of its own that no router leads out of (apart_by(), own_networks.h):
// hosts cabled to each other directly, as a ring of DGX Sparks.  A device that NCCL names without
// looking at addresses then often reaches nobody.  Pure but for `lookup`.
Config with_choice_by_network(const Config& config, std::span<const Port> ports,
                              std::span<const OwnNetwork> networks, const EnvLookup& lookup);

}  // namespace twinpath
