// See rail_turns.h.
#include "gda/rail_turns.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "gda/gin_core.h"
#include "plugin/base/log.h"
#include "plugin/base/wire.h"

namespace twinpath::gda {
namespace {

using Bytes = std::vector<std::uint8_t>;

// The turn'th of the bits that are set, going round.
std::size_t bit_in_turn(std::uint32_t bits, std::uint32_t turn) {
  for (auto before = turn % static_cast<std::uint32_t>(std::popcount(bits)); before > 0; --before)
    bits &= bits - 1;
  return static_cast<std::size_t>(std::countr_zero(bits));
}

Bytes encode(const PortsOfRank& p) {
  Writer w;
  w.integer(p.ports);
  w.integer(p.usable);
  w.integer(p.turn);
  return w.take();
}

PortsOfRank decode(const Bytes& bytes) {
  Reader in(bytes);
  PortsOfRank p;
  p.ports = in.integer<std::uint8_t>();
  p.usable = in.integer<std::uint32_t>();
  p.turn = in.integer<std::uint32_t>();
  return in.ok() ? p : PortsOfRank{};
}

// The device's ports with the addresses that they have now; empty places cannot be used, `why` not.
std::vector<std::optional<Rail>> look_at_ports(const Devices& devices, int device,
                                               std::string& why) {
  std::vector<std::optional<Rail>> rails;
  for (const RailPort& port : devices.rails(device)) {
    std::string reason;
    auto now = devices.live(port, reason);
    if (now && !devices.port_active(port).value_or(true)) reason = port.port->name + " is down";
    rails.push_back(reason.empty() && now ? std::optional(Rail::of(port, *now)) : std::nullopt);
    if (!rails.back()) why += (why.empty() ? "" : "; ") + reason;
  }
  return rails;
}

}  // namespace

std::size_t choose_rail(std::span<const PortsOfRank> all, std::size_t rank) {
  std::uint32_t common = ~0u;
  bool alike = true;
  for (const PortsOfRank& p : all) {
    common &= p.usable;
    alike &= p.ports == all.front().ports;
  }
  return bit_in_turn(alike && common != 0 ? common : all[rank].usable, all.front().turn);
}

Result<Rail> agree_on_rail(const Devices& devices, int device, std::uint32_t turn, Mesh& mesh) {
  std::string why;
  const auto rails = look_at_ports(devices, device, why);
  PortsOfRank mine{static_cast<std::uint8_t>(rails.size()), 0, turn};
  for (std::size_t i = 0; i < rails.size(); ++i)
    if (rails[i]) mine.usable |= 1u << i;
  Result<Bytes> told = encode(mine);
  if (mine.usable == 0) {
    TP_WARN("GIN: no port of device %d can be used: %s", device,
            why.empty() ? "there is no such device" : why.c_str());
    told = Status::system;
  }
  auto from = gather_or_fail(mesh, told, "choosing a port");
  if (!from) return from.status();
  std::vector<PortsOfRank> all;
  for (const Bytes& bytes : *from) all.push_back(decode(bytes));
  const std::size_t place = choose_rail(all, static_cast<std::size_t>(mesh.rank()));
  const Rail& rail = *rails[place];
  if (rails.size() > 1)
    TP_INFO(net, "GIN connection %u of rank %d goes over %s%s%s", all.front().turn, mesh.rank(),
            rail.port.port->name.c_str(), why.empty() ? "" : "; not used: ", why.c_str());
  return rail;
}

}  // namespace twinpath::gda
