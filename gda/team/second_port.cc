// See second_port.h.
#include "gda/team/second_port.h"

#include <algorithm>

#include "gda/team/gin_core.h"
#include "gda/team/rail_turns.h"
#include "plugin/base/log.h"

namespace twinpath::gda {
namespace {

bool wanted(const GinCore& core) {
  return core.config().failover && core.verbs().ordered && core.adapter == nullptr &&
         std::all_of(core.plans.begin(), core.plans.end(),
                     [](const PeerPlan& plan) { return plan.counted; });
}

}  // namespace

Status agree_on_second_port(GinCore& core, int device) {
  auto rail = agree_on_second_rail(*core.devices, device, core.rail, wanted(core), *core.mesh);
  if (!rail) return rail.status();
  if (!*rail) return Status::ok;
  auto limits = usable_limits(*core.devices, **rail);
  if (!limits) return limits.status();
  core.second = std::make_unique<SecondPort>(**rail, *limits, *core.devices, core.owner());
  TP_INFO(net, "GIN of rank %d moves from %s to %s if that port fails", core.rank(),
          core.rail.port.port->name.c_str(), core.second->rail.port.port->name.c_str());
  return Status::ok;
}

}  // namespace twinpath::gda
