// See rail_turns.h.
#include "gda/team/rail_turns.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "gda/team/gin_core.h"
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
  w.integer(p.up);
  w.integer(p.turn);
  return w.take();
}

PortsOfRank decode(const Bytes& bytes) {
  Reader in(bytes);
  PortsOfRank p;
  p.ports = in.integer<std::uint8_t>();
  p.usable = in.integer<std::uint32_t>();
  p.up = in.integer<std::uint32_t>();
  p.turn = in.integer<std::uint32_t>();
  return in.ok() ? p : PortsOfRank{};
}

// The device's ports with the addresses that they have now.
struct Ports {
  std::vector<std::optional<Rail>> rails;  // empty: cannot be used
  PortsOfRank told;
  std::string why;  // those that are down or cannot be used
};

Ports look_at_ports(const Devices& devices, const std::vector<RailPort>& of) {
  Ports ports;
  const auto complain = [&ports](const std::string& reason) {
    ports.why += (ports.why.empty() ? "" : "; ") + reason;
  };
  for (const RailPort& port : of) {
    const std::uint32_t bit = 1u << ports.rails.size();
    std::string reason;
    auto now = devices.live(port, reason);
    if (!now) {
      complain(reason);
      ports.rails.emplace_back();
      continue;
    }
    ports.rails.emplace_back(Rail::of(port, *now));
    ports.told.usable |= bit;
    if (devices.port_active(port).value_or(true))
      ports.told.up |= bit;
    else
      complain(port.port->name + " is down");
  }
  ports.told.ports = static_cast<std::uint8_t>(ports.rails.size());
  return ports;
}

}  // namespace

std::size_t choose_rail(std::span<const PortsOfRank> all, std::size_t rank) {
  std::uint32_t up = ~0u, usable = ~0u;
  bool alike = true;
  for (const PortsOfRank& p : all) {
    up &= p.up;
    usable &= p.usable;
    alike &= p.ports == all.front().ports;
  }
  if (!alike || usable == 0) up = all[rank].up, usable = all[rank].usable;
  return bit_in_turn(up != 0 ? up : usable, all.front().turn);
}

Result<Rail> agree_on_rail(const Devices& devices, int device, std::uint32_t turn, const char* name,
                           Mesh& mesh) {
  Ports mine = look_at_ports(devices, devices.rails(device));
  mine.told.turn = turn;
  Result<Bytes> told = encode(mine.told);
  if (mine.told.usable == 0) {
    TP_WARN("%s: no port of device %d can be used: %s", name, device,
            mine.why.empty() ? "there is no such device" : mine.why.c_str());
    told = Status::system;
  }
  auto from = gather_or_fail(mesh, told, "choosing a port");
  if (!from) return from.status();
  std::vector<PortsOfRank> all;
  for (const Bytes& bytes : *from) all.push_back(decode(bytes));
  const std::size_t place = choose_rail(all, static_cast<std::size_t>(mesh.rank()));
  const Rail& rail = *mine.rails[place];
  const std::string& why = mine.why;
  if (mine.rails.size() > 1)
    TP_INFO(net, "%s connection %u of rank %d goes over %s%s%s", name, all.front().turn,
            mesh.rank(), rail.port.port->name.c_str(),
            why.empty() ? "" : "; not used: ", why.c_str());
  return rail;
}

Result<std::optional<Rail>> agree_on_second_rail(const Devices& devices, int device,
                                                 const Rail& first, bool wanted, Mesh& mesh) {
  Ports mine;
  std::vector<RailPort> ports = devices.rails(device);
  const auto own = static_cast<std::uint8_t>(ports.size());
  const std::vector<RailPort> reserve = devices.standby(device);
  ports.insert(ports.end(), reserve.begin(), reserve.end());
  if (wanted) {
    mine = look_at_ports(devices, ports);
    mine.told.ports = own;  // so that equal places are equally near
  }
  for (std::size_t place = 0; place < mine.rails.size(); ++place) {
    if (!mine.rails[place] || mine.rails[place]->port.port != first.port.port) continue;
    mine.told.usable &= ~(1u << place);
    mine.told.up &= ~(1u << place);
  }
  auto from = gather_or_fail(mesh, encode(mine.told), "choosing a second port");
  if (!from) return from.status();
  std::vector<PortsOfRank> all;
  std::uint32_t common = ~0u;
  for (const Bytes& bytes : *from) {
    all.push_back(decode(bytes));
    if (all.back().ports != all.front().ports) common = 0;
    common &= all.back().usable;
  }
  if (common == 0) return std::optional<Rail>();
  return mine.rails[choose_rail(all, static_cast<std::size_t>(mesh.rank()))];
}

}  // namespace twinpath::gda
