#include "proxy/connect/subnet_choice.h"

#include <algorithm>

#include "plugin/base/ip_range.h"
#include "plugin/base/log.h"
#include "plugin/fabric/gid.h"

namespace twinpath {
namespace {

bool reaches(const DeviceAddresses& device, std::span<const ibv_gid> peer, int prefix) {
  return !device.empty() && std::all_of(device.begin(), device.end(), [&](const ibv_gid& own) {
    return std::any_of(peer.begin(), peer.end(),
                       [&](const ibv_gid& other) { return same_network(own, other, prefix); });
  });
}

}  // namespace

bool same_network(const ibv_gid& a, const ibv_gid& b, int prefix) {
  if (is_zero(a) || is_zero(b) || is_link_local(a) || is_link_local(b)) return false;
  IpRange network{family_of(a), {}, family_of(a) == AF_INET ? prefix : 64};
  std::copy_n(address_in(a), family_of(a) == AF_INET ? 4 : 16, network.address.begin());
  return network.contains(family_of(b), address_in(b));
}

int choose_by_network(int named, std::span<const DeviceAddresses> devices,
                      std::span<const ibv_gid> peer, std::span<const ibv_gid> others, int prefix) {
  for (const std::span<const ibv_gid> addresses : {peer, others}) {
    if (reaches(devices[static_cast<std::size_t>(named)], addresses, prefix)) return named;
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const DeviceAddresses& d) {
      return reaches(d, addresses, prefix);
    });
    if (found != devices.end()) return static_cast<int>(found - devices.begin());
  }
  return named;
}

DeviceAddresses addresses_of(const Devices& devices, int device) {
  DeviceAddresses out;
  for (const RailPort& port : devices.rails(device)) {
    std::string why;
    auto now = devices.live(port, why);
    if (!port.port->roce || !now) return {};
    out.push_back(now->gid.gid);
  }
  return out;
}

DeviceAddresses addresses_of(std::span<const Rail> rails) {
  DeviceAddresses out;
  for (const Rail& rail : rails) {
    if (!rail.port.port->roce) return {};
    out.push_back(rail.gid.gid);
  }
  return out;
}

DeviceAddresses other_addresses(const Devices& devices, int device) {
  const DeviceAddresses own = addresses_of(devices, device);
  DeviceAddresses out;
  // Devices of several ports repeat what their ports, which come before them, have said.
  for (int d = 0; d < static_cast<int>(devices.count()); ++d)
    for (const ibv_gid& gid : addresses_of(devices, d)) {
      const auto same = [&gid](const ibv_gid& g) {
        return std::equal(std::begin(g.raw), std::end(g.raw), std::begin(gid.raw));
      };
      if (std::none_of(own.begin(), own.end(), same) && std::none_of(out.begin(), out.end(), same))
        out.push_back(gid);
    }
  return out;
}

int device_for(const Devices& devices, int named, std::span<const ibv_gid> peer,
               std::span<const ibv_gid> others) {
  const Config& config = devices.config();
  const auto count = static_cast<int>(devices.count());
  if (!config.ib_subnet_aware || named < 0 || named >= count) return named;
  std::vector<DeviceAddresses> all;
  for (int d = 0; d < count; ++d) all.push_back(addresses_of(devices, d));
  const int chosen = choose_by_network(named, all, peer, others, config.ib_subnet_prefix);
  if (chosen == named) return named;
  const auto name = [&devices](int d) {
    auto props = devices.properties(d);
    return props ? props->name : std::string("?");
  };
  TP_INFO(net,
          "%s is taken in place of %s: it is on the peer's network "
          "(NCCL_IB_SUBNET_AWARE_ROUTING)",
          name(chosen).c_str(), name(named).c_str());
  return chosen;
}

}  // namespace twinpath
