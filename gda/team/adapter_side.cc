// See adapter_side.h.
#include "gda/team/adapter_side.h"

#include "plugin/fabric/fabric.h"

namespace twinpath::gda {
namespace {

// The least that a queue has; a context asks again for its own depth.
constexpr unsigned kLogDepth = 4;

}  // namespace

std::shared_ptr<AdapterSide> AdapterSide::open(std::shared_ptr<Devices> devices, const Rail& rail,
                                               std::string& why_not) {
  auto side = std::make_shared<AdapterSide>(AdapterSide{std::move(devices), {}, nullptr});
  auto table = load_mlx5(side->software() ? FabricKind::soft : FabricKind::verbs, why_not);
  if (!table) return nullptr;
  side->table = *table;
  if (!side->table.is_supported(rail.port.adapter->context->device)) {
    why_not = rail.port.port->name + " is no mlx5 adapter";
    return nullptr;
  }
  auto adapter = mlx5::Adapter::make(side->devices->verbs(), side->table, rail);
  if (!adapter) {
    why_not = rail.port.port->name + " takes no commands (DevX); the warning before has the reason";
    return nullptr;
  }
  side->adapter = std::move(adapter).take();
  const auto lacks = mlx5::missing(side->adapter->capabilities(), kLogDepth);
  if (lacks.empty()) return side;
  why_not = rail.port.port->name + ": " + lacks.front();
  return nullptr;
}

}  // namespace twinpath::gda
