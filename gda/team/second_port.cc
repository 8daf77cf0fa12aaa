// See second_port.h.
#include "gda/team/second_port.h"

#include "gda/team/rail_turns.h"
#include "gda/team/team_core.h"
#include "plugin/base/log.h"
#include "plugin/gpu/write_flush.h"

namespace twinpath::gda {
namespace {

// Why what has come over that port of the team cannot be made visible to the GPU once it has
// failed; empty: it can.
std::string lacks_flush(const TeamCore& team, const Rail& rail) {
  if (!rail.port.port->data_direct.empty()) return "its driver does not see to data direct";
  return gpu::lacks_write_flush(team.gpu);
}

Settled settled_of(const TeamCore& team, const Rail& rail) {
  PlaceFacts facts{.ordered = team.verbs().ordered, .gpu = team.gpu >= 0};
  facts.flushed = facts.gpu && !facts.ordered && lacks_flush(team, rail).empty();
  return settled_at_move(facts);
}

bool moves_at_all(const TeamCore& team) {
  return team.config().failover && settled_of(team, team.rail) != Settled::none;
}

bool has_other_port(const TeamCore& team) {
  return team.devices->rails(team.device).size() + team.devices->standby(team.device).size() > 1;
}

}  // namespace

void count_to_move(TeamCore& team) {
  if (team.config().gin_atomics == AtomicsChoice::automatic && moves_at_all(team) &&
      has_other_port(team))
    team.limits.atomics = false;
}

Status agree_on_second_port(TeamCore& team, SecondUse use) {
  const bool can = use != SecondUse::none;
  const bool wanted = can && moves_at_all(team);
  if (can && !wanted && team.config().failover && has_other_port(team))
    TP_INFO(net,
            "%s of rank %d does not move if %s fails: what came over it to memory of GPU %d is not "
            "known to be there before signals over another port, as %s",
            team.name, team.rank(), team.rail.port.port->name.c_str(), team.gpu,
            lacks_flush(team, team.rail).c_str());
  auto agreed = agree_on_second_rail(*team.devices, team.device, team.rail, wanted, *team.mesh);
  if (!agreed) return agreed.status();
  if (!agreed->rail) return Status::ok;
  auto limits = usable_limits(*team.devices, *agreed->rail);
  if (!limits) return limits.status();
  limits->atomics &= team.limits.atomics;
  team.second = std::make_unique<SecondPort>(
      SecondPort::Place{*agreed->rail, *limits, settled_of(team, *agreed->rail), use},
      std::move(agreed->ports), *team.devices, team.owner());
  TP_INFO(net, "%s of rank %d moves from %s to %s if that port fails", team.name, team.rank(),
          team.rail.port.port->name.c_str(), team.second->rail.port.port->name.c_str());
  for (int peer = 0; peer < team.ranks(); ++peer)
    if (team.second->crosses(team.rank(), peer))
      TP_INFO(net, "%s of rank %d: each queue to %s is over one of the two at both ends", team.name,
              team.rank(), team.mesh->peer_text(peer).c_str());
  return Status::ok;
}

bool SecondPort::crosses(int rank) const {
  for (int peer = 0; peer < static_cast<int>(ports.size()); ++peer)
    if (crosses(rank, peer)) return true;
  return false;
}

}  // namespace twinpath::gda
