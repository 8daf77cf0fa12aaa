// Networks of this host's interfaces, and whether connections go by them.
#include <linux/if_addr.h>
#include <net/if.h>

#include <cstring>
#include <map>

#include "plugin/base/own_networks.h"
#include "plugin/base/rtnetlink.h"
#include "plugin/fabric/by_network.h"
#include "test/support/catch.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

using KernelBytes = std::vector<std::uint8_t>;

// One message of the kernel's.
class KernelMessage {
 public:
  template <class Body>
  KernelMessage(std::uint16_t type, const Body& body) {
    nlmsghdr head{};
    head.nlmsg_type = type;
    append(&head, sizeof head);
    append(&body, sizeof body);
  }
  KernelMessage& with(std::uint16_t type, const KernelBytes& value) {
    const rtattr a{static_cast<std::uint16_t>(RTA_LENGTH(value.size())), type};
    append(&a, sizeof a);
    append(value.data(), value.size());
    return *this;
  }
  KernelMessage& with(std::uint16_t type, int value) {
    KernelBytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return with(type, bytes);
  }
  operator KernelBytes() const {
    KernelBytes out = bytes_;
    const auto size = static_cast<std::uint32_t>(out.size());
    std::memcpy(out.data(), &size, sizeof size);
    return out;
  }

 private:
  void append(const void* from, std::size_t n) {
    const auto* at = static_cast<const std::uint8_t*>(from);
    bytes_.insert(bytes_.end(), at, at + n);
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }
  KernelBytes bytes_;
};

KernelBytes address(const KernelBytes& own, int prefix, int interface,
                    const KernelBytes& far = {}) {
  ifaddrmsg body{};
  body.ifa_family = own.size() == 4 ? AF_INET : AF_INET6;
  body.ifa_prefixlen = static_cast<std::uint8_t>(prefix);
  body.ifa_index = static_cast<unsigned>(interface);
  KernelMessage m(RTM_NEWADDR, body);
  m.with(IFA_ADDRESS, far.empty() ? own : far);
  if (own.size() == 4) m.with(IFA_LOCAL, own);
  return m;
}
KernelMessage route(int interface) {
  KernelMessage m(RTM_NEWROUTE, rtmsg{});
  if (interface != 0) m.with(RTA_OIF, interface);
  return m;
}
// Two ways to one network, as bytes of RTA_MULTIPATH.
KernelBytes hops(int direct, int by_router) {
  KernelBytes out(2 * sizeof(rtnexthop));
  const KernelBytes gateway =
      KernelMessage(RTM_NEWROUTE, rtmsg{}).with(RTA_GATEWAY, KernelBytes{10, 0, 2, 254});
  const std::size_t size = RTA_LENGTH(4);
  out.insert(out.end(), gateway.end() - static_cast<std::ptrdiff_t>(size), gateway.end());
  const rtnexthop first{sizeof(rtnexthop), 0, 0, direct};
  const rtnexthop second{static_cast<std::uint16_t>(sizeof(rtnexthop) + size), 0, 0, by_router};
  std::memcpy(out.data(), &first, sizeof first);
  std::memcpy(out.data() + sizeof first, &second, sizeof second);
  return out;
}
KernelBytes operator+(KernelBytes a, const KernelBytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

OwnNetwork network(const char* range, bool gateway = false) {
  return {*parse_ip_range(range), 0, gateway};
}

Port port(const char* address, bool roce = true) {
  Port p;
  p.roce = roce;
  const IpRange range = *parse_ip_range(std::string(address) + "/32");
  GidEntry entry{0, {}, 2};
  if (range.family == AF_INET) {
    entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
    std::copy_n(range.address.begin(), 4, entry.gid.raw + 12);
  } else {
    std::copy_n(range.address.begin(), 16, entry.gid.raw);
  }
  p.gids = {entry};
  return p;
}

}  // namespace

TEST_CASE("networks and routers are read from what the kernel lists") {
  const KernelBytes v6{0xfd, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1};
  const KernelBytes addresses = address({10, 0, 1, 1}, 24, 2) + address({10, 0, 2, 1}, 31, 3) +
                                address(v6, 64, 4) + address({10, 9, 9, 1}, 32, 5, {10, 9, 9, 2}) +
                                address({10}, 8, 6);
  const KernelBytes routes = KernelBytes(route(2)) +
                             KernelBytes(route(3).with(RTA_GATEWAY, KernelBytes{10, 0, 2, 2})) +
                             KernelBytes(route(0).with(RTA_MULTIPATH, hops(2, 4)));
  const auto found = networks_in(addresses, routes);
  REQUIRE(found.size() == 4);  // the last one is cut short
  CHECK((found[0].range.prefix == 24 && found[0].range.address[3] == 1));
  CHECK((found[0].interface == 2 && found[1].interface == 3));
  CHECK((!found[0].gateway && found[1].gateway && found[2].gateway && !found[3].gateway));
  CHECK((found[2].range.family == AF_INET6 && found[2].range.address[7] == 3));
  CHECK((found[3].range.address[3] == 1));  // its own, not the other end's
  for (const OwnNetwork& n : networks_in(addresses, std::nullopt)) CHECK(n.gateway);
  // KernelBytes that end anywhere are no reason to read on.
  for (std::size_t n = 0; n < addresses.size(); ++n) {
    const KernelBytes cut(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK(networks_in(cut, routes).size() <= 4);
  }
}

TEST_CASE("this host's loopback address is among its networks") {
  const auto all = own_networks();
  NEEDS(!all.empty(), "needs rtnetlink");
  const auto loopback = static_cast<int>(if_nametoindex("lo"));
  CHECK(std::any_of(all.begin(), all.end(), [&](const OwnNetwork& n) {
    return n.interface == loopback && n.range.family == AF_INET && n.range.address[0] == 127 &&
           n.range.prefix == 8 && !n.gateway;
  }));
}

TEST_CASE("ports go by network where each has one of its own and no router") {
  struct Row {
    const char* what;
    std::vector<OwnNetwork> networks;
    std::optional<int> bits;
  };
  const Row rows[] = {
      {"a ring's two cables", {network("10.0.1.1/24"), network("10.0.3.2/24")}, 24},
      {"cables with the shortest networks", {network("10.0.1.0/31"), network("10.0.1.2/31")}, 31},
      {"IPv6", {network("fd00:0:0:1::1/64"), network("fd00:0:0:2::1/64")}, 64},
      {"one port", {network("10.0.1.1/24")}, std::nullopt},
      {"none", {}, std::nullopt},
      {"a router", {network("10.0.1.1/24"), network("10.0.2.1/24", true)}, std::nullopt},
      {"one network", {network("10.0.1.1/24"), network("10.0.1.2/24")}, std::nullopt},
      {"two of three on one",
       {network("10.0.1.1/24"), network("10.0.2.1/24"), network("10.0.1.2/24")},
       std::nullopt},
      {"lengths that differ", {network("10.0.1.1/24"), network("10.1.0.1/16")}, std::nullopt},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(apart_by(row.networks) == row.bits);
  }
}

TEST_CASE("the choice by network turns itself on, and only where the user says nothing") {
  using Settings = std::map<std::string, std::string>;
  struct Row {
    const char* what;
    std::vector<Port> ports;
    Settings settings;
    bool aware;
    int prefix;
  };
  const std::vector<OwnNetwork> networks = {
      network("127.0.0.1/8"),       network("10.0.1.1/30"),        network("10.0.1.5/30"),
      network("10.9.0.1/30", true), network("fd00::1:0:0:0:1/64"), network("fd00::2:0:0:0:1/64"),
      network("fe80::1/64"),        network("fe80::2/64")};
  const char* const kChoice = "NCCL_IB_SUBNET_AWARE_ROUTING";
  const char* const kPrefix = "NCCL_IB_SUBNET_PREFIX_LEN";
  const std::vector<Port> ring = {port("10.0.1.1"), port("10.0.1.5")};
  const Row rows[] = {
      {"a ring", ring, {}, true, 30},
      {"a blank is not set", ring, {{kChoice, " "}}, true, 30},
      {"switched off", ring, {{kChoice, "0"}}, false, 24},
      {"switched on: with the user's prefix", ring, {{kChoice, "1"}}, true, 24},
      {"a prefix is kept", ring, {{kPrefix, "29"}}, true, 29},
      {"IPv6 has its own number", {port("fd00::1:0:0:0:1"), port("fd00::2:0:0:0:1")}, {}, true, 24},
      {"a router", {port("10.0.1.1"), port("10.9.0.1")}, {}, false, 24},
      {"no interface has it", {port("10.0.1.1"), port("10.0.7.1")}, {}, false, 24},
      {"InfiniBand", {port("10.0.1.1"), port("10.0.1.5", false)}, {}, false, 24},
      {"link-local", {port("fe80::1"), port("fe80::2")}, {}, false, 24},
      {"one port", {port("10.0.1.1")}, {}, false, 24},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const EnvLookup lookup = [&row](const char* name) {
      const auto at = row.settings.find(name);
      return at != row.settings.end() ? at->second.c_str() : nullptr;
    };
    Config read = read_config(lookup);
    if (row.ports.front().gids.front().gid.raw[0] != 0) read.ib_addr_family = "AF_INET6";
    const Config config = with_choice_by_network(read, row.ports, networks, lookup);
    CHECK(config.ib_subnet_aware == row.aware);
    CHECK(config.ib_subnet_prefix == row.prefix);
  }
}

}  // namespace twinpath::test
