#include "plugin/fabric/by_network.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plugin/base/text.h"
#include "plugin/fabric/gid.h"

namespace twinpath {
std::optional<OwnNetwork> network_of(const ibv_gid& gid, std::span<const OwnNetwork> networks) {
  // Every interface has a link-local address, and all of these are on one network by their bits.
  if (is_zero(gid) || is_link_local(gid)) return std::nullopt;
  const int family = family_of(gid);
  const auto* own = address_in(gid);
  const auto found = std::find_if(networks.begin(), networks.end(), [&](const OwnNetwork& n) {
    return n.range.family == family &&
           std::equal(own, own + (family == AF_INET ? 4 : 16), n.range.address.begin());
  });
  return found != networks.end() ? std::optional(*found) : std::nullopt;
}

Config with_choice_by_network(const Config& config, std::span<const Port> ports,
                              std::span<const OwnNetwork> networks, const EnvLookup& lookup) {
  if (counts_as_set(lookup("NCCL_IB_SUBNET_AWARE_ROUTING"))) return config;
  std::vector<OwnNetwork> of_ports;
  for (const Port& port : ports) {
    std::string why;
    auto gid = choose_gid(port, config, why);
    const auto network =
        port.roce && gid ? network_of(gid->gid, networks) : std::optional<OwnNetwork>();
    if (!network) return config;
    of_ports.push_back(*network);
  }
  const auto prefix = apart_by(of_ports);
  if (!prefix) return config;
  Config out = config;
  out.ib_subnet_aware = true;
  if (of_ports.front().range.family == AF_INET &&
      !counts_as_set(lookup("NCCL_IB_SUBNET_PREFIX_LEN")))
    out.ib_subnet_prefix = *prefix;
  return out;
}

}  // namespace twinpath
