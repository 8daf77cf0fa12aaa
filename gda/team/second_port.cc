// See second_port.h.
#include "gda/team/second_port.h"

#include "gda/team/rail_turns.h"
#include "gda/team/team_core.h"
#include "plugin/base/log.h"

namespace twinpath::gda {

Status agree_on_second_port(TeamCore& team, bool can) {
  const bool wanted = can && team.config().failover && team.verbs().ordered;
  auto rail = agree_on_second_rail(*team.devices, team.device, team.rail, wanted, *team.mesh);
  if (!rail) return rail.status();
  if (!*rail) return Status::ok;
  auto limits = usable_limits(*team.devices, **rail);
  if (!limits) return limits.status();
  team.second = std::make_unique<SecondPort>(**rail, *limits, *team.devices, team.owner());
  TP_INFO(net, "%s of rank %d moves from %s to %s if that port fails", team.name, team.rank(),
          team.rail.port.port->name.c_str(), team.second->rail.port.port->name.c_str());
  return Status::ok;
}

}  // namespace twinpath::gda
