#include "plugin/base/own_networks.h"

#include <linux/if_addr.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "plugin/base/rtnetlink.h"

namespace twinpath {
namespace {

std::size_t address_bytes(int family) { return family == AF_INET ? 4 : 16; }

// Interfaces from which some route goes to a router: directly, or as one of several.
std::vector<int> routers_in(std::span<const std::uint8_t> routes) {
  std::vector<int> out;
  const auto is_router = [](const rtattr* a) {
    return a->rta_type == RTA_GATEWAY || a->rta_type == RTA_VIA;
  };
  each_message<rtmsg>(routes, RTM_NEWROUTE, [&](const rtmsg&, const rtattr* first, int bytes) {
    int interface = 0;
    bool router = false;
    each_attribute(first, bytes, [&](const rtattr* a) {
      if (a->rta_type == RTA_OIF) interface = number_in(a);
      if (is_router(a)) router = true;
      if (a->rta_type != RTA_MULTIPATH) return;
      auto left = static_cast<int>(RTA_PAYLOAD(a));
      for (auto* hop = static_cast<rtnexthop*>(RTA_DATA(a)); RTNH_OK(hop, left);
           left -= RTNH_ALIGN(hop->rtnh_len), hop = RTNH_NEXT(hop))
        each_attribute(RTNH_DATA(hop), hop->rtnh_len - static_cast<int>(RTNH_LENGTH(0)),
                       [&](const rtattr* of) {
                         if (is_router(of)) out.push_back(hop->rtnh_ifindex);
                       });
    });
    if (router && interface != 0) out.push_back(interface);
  });
  return out;
}

}  // namespace

std::vector<OwnNetwork> networks_in(std::span<const std::uint8_t> addresses,
                                    std::optional<std::span<const std::uint8_t>> routes) {
  const std::vector<int> routers = routes ? routers_in(*routes) : std::vector<int>();
  std::vector<OwnNetwork> out;
  const auto take = [&](const ifaddrmsg& info, const rtattr* first, int bytes) {
    if (info.ifa_family != AF_INET && info.ifa_family != AF_INET6) return;
    OwnNetwork n;
    n.range.family = info.ifa_family;
    n.range.prefix = info.ifa_prefixlen;
    n.interface = static_cast<int>(info.ifa_index);
    n.gateway = !routes || std::find(routers.begin(), routers.end(), n.interface) != routers.end();
    const rtattr* own = nullptr;
    each_attribute(first, bytes, [&own](const rtattr* a) {
      // Of a link between two, IFA_ADDRESS is the other end's.
      if (a->rta_type == IFA_LOCAL || (a->rta_type == IFA_ADDRESS && own == nullptr)) own = a;
    });
    if (own == nullptr || RTA_PAYLOAD(own) < address_bytes(n.range.family)) return;
    std::memcpy(n.range.address.data(), RTA_DATA(own), address_bytes(n.range.family));
    out.push_back(n);
  };
  each_message<ifaddrmsg>(addresses, RTM_NEWADDR, take);
  return out;
}

std::vector<OwnNetwork> own_networks() {
  const auto addresses = netlink_dump(RTM_GETADDR), routes = netlink_dump(RTM_GETROUTE);
  if (!addresses) return {};
  return networks_in(*addresses,
                     routes ? std::optional<std::span<const std::uint8_t>>(*routes) : std::nullopt);
}

std::optional<int> apart_by(std::span<const OwnNetwork> networks) {
  if (networks.size() < 2) return std::nullopt;
  const int prefix = networks.front().range.prefix;
  for (std::size_t i = 0; i < networks.size(); ++i) {
    const IpRange& own = networks[i].range;
    if (networks[i].gateway || own.prefix != prefix) return std::nullopt;
    const auto shared = [&own](const OwnNetwork& other) {
      return other.range.contains(own.family, own.address.data());
    };
    if (std::any_of(networks.begin(), networks.begin() + static_cast<std::ptrdiff_t>(i), shared))
      return std::nullopt;
  }
  return prefix;
}

}  // namespace twinpath
