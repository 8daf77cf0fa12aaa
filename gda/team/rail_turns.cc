// See rail_turns.h.
#include "gda/team/rail_turns.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>

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

void encode(Writer& w, const PortsOfRank& p) {
  w.integer(p.ports);
  w.integer(p.usable);
  w.integer(p.up);
  w.integer(p.turn);
}

PortsOfRank decode(Reader& in) {
  PortsOfRank p;
  p.ports = in.integer<std::uint8_t>();
  p.usable = in.integer<std::uint32_t>();
  p.up = in.integer<std::uint32_t>();
  p.turn = in.integer<std::uint32_t>();
  return in.ok() ? p : PortsOfRank{};
}

Bytes encode(const SecondPortsOfRank& p) {
  Writer w;
  encode(w, p.can);
  w.integer(p.first);
  w.integer(static_cast<std::uint8_t>(p.which.size()));
  for (const std::uint64_t port : p.which) w.integer(port);
  return w.take();
}

SecondPortsOfRank decode_second(const Bytes& bytes) {
  Reader in(bytes);
  SecondPortsOfRank p;
  p.can = decode(in);
  p.first = in.integer<std::uint64_t>();
  p.which.resize(in.integer<std::uint8_t>());
  for (std::uint64_t& port : p.which) port = in.integer<std::uint64_t>();
  return p;
}

// GUIDs of two adapters differ by more than their first byte.
std::uint64_t which(const RailPort& port) {
  if (port.port->guid == 0) return 0;
  return port.port->guid ^ std::uint64_t{port.port->number} << 56;
}

// The places that are some rank's first port somewhere; none if some rank does not say.
std::uint32_t first_ports(std::span<const SecondPortsOfRank> all) {
  std::set<std::uint64_t> firsts;
  for (const SecondPortsOfRank& p : all) firsts.insert(p.first);
  std::uint32_t places = 0;
  for (const SecondPortsOfRank& p : all) {
    if (p.which.empty()) return 0;
    for (std::size_t place = 0; place < std::min<std::size_t>(p.which.size(), 32); ++place)
      if (firsts.count(p.which[place]) != 0) places |= 1u << place;
  }
  return places;
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

std::optional<std::size_t> choose_second_rail(std::span<const SecondPortsOfRank> all,
                                              std::size_t rank) {
  std::vector<PortsOfRank> can;
  std::uint32_t usable = ~0u, up = ~0u;
  for (const SecondPortsOfRank& p : all) {
    if (p.can.ports != all.front().can.ports) return std::nullopt;
    usable &= p.can.usable;
    up &= p.can.up;
    can.push_back(p.can);
  }
  if (usable == 0) return std::nullopt;
  if (const std::uint32_t avoided = first_ports(all); (up & ~avoided) != 0)
    for (PortsOfRank& p : can) p.up &= ~avoided;
  return choose_rail(can, rank);
}

Result<Rail> agree_on_rail(const Devices& devices, int device, std::uint32_t turn, const char* name,
                           Mesh& mesh) {
  Ports mine = look_at_ports(devices, devices.rails(device));
  mine.told.turn = turn;
  Writer w;
  encode(w, mine.told);
  Result<Bytes> told = w.take();
  if (mine.told.usable == 0) {
    TP_WARN("%s: no port of device %d can be used: %s", name, device,
            mine.why.empty() ? "there is no such device" : mine.why.c_str());
    told = Status::system;
  }
  auto from = gather_or_fail(mesh, told, "choosing a port");
  if (!from) return from.status();
  std::vector<PortsOfRank> all;
  for (const Bytes& bytes : *from) {
    Reader in(bytes);
    all.push_back(decode(in));
  }
  const std::size_t place = choose_rail(all, static_cast<std::size_t>(mesh.rank()));
  const Rail& rail = *mine.rails[place];
  const std::string& why = mine.why;
  if (mine.rails.size() > 1)
    TP_INFO(net, "%s connection %u of rank %d goes over %s%s%s", name, all.front().turn,
            mesh.rank(), rail.port.port->name.c_str(),
            why.empty() ? "" : "; not used: ", why.c_str());
  return rail;
}

Result<SecondRail> agree_on_second_rail(const Devices& devices, int device, const Rail& first,
                                        bool wanted, Mesh& mesh) {
  Ports mine;
  SecondPortsOfRank told;
  std::vector<RailPort> ports = devices.rails(device);
  const auto own = static_cast<std::uint8_t>(ports.size());
  const std::vector<RailPort> reserve = devices.standby(device);
  ports.insert(ports.end(), reserve.begin(), reserve.end());
  if (wanted) {
    mine = look_at_ports(devices, ports);
    told.can = mine.told;
    told.can.ports = own;  // so that equal places are equally near
  }
  told.first = which(first.port);
  for (std::size_t place = 0; place < ports.size(); ++place) {
    told.which.push_back(which(ports[place]));
    if (ports[place].port != first.port.port) continue;
    told.can.usable &= ~(1u << place);
    told.can.up &= ~(1u << place);
  }
  auto from = gather_or_fail(mesh, encode(told), "choosing a second port");
  if (!from) return from.status();
  std::vector<SecondPortsOfRank> all;
  for (const Bytes& bytes : *from) all.push_back(decode_second(bytes));
  SecondRail second;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto place = choose_second_rail(all, rank);
    if (!place) return SecondRail{};
    const auto& its = all[rank].which;
    second.ports.push_back({all[rank].first, *place < its.size() ? its[*place] : 0});
    if (rank == static_cast<std::size_t>(mesh.rank())) second.rail = mine.rails[*place];
  }
  return second;
}

}  // namespace twinpath::gda
