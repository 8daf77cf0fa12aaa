// Choice of the control interface.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "plugin/base/links.h"
#include "plugin/base/socket.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

namespace twinpath {
namespace {

Interface interface(const char* name, const char* address) {
  Interface i;
  i.name = name;
  if (std::strchr(address, ':') != nullptr) {
    i.address.in6.sin6_family = AF_INET6;
    REQUIRE(inet_pton(AF_INET6, address, &i.address.in6.sin6_addr) == 1);
  } else {
    i.address.in4.sin_family = AF_INET;
    REQUIRE(inet_pton(AF_INET, address, &i.address.in4.sin_addr) == 1);
  }
  return i;
}

// In the order of getifaddrs: all IPv4, then all IPv6.
std::vector<Interface> host() {
  return {interface("lo", "127.0.0.1"),  interface("eth0", "10.0.0.1"),
          interface("eth1", "10.0.1.1"), interface("docker0", "172.17.0.1"),
          interface("ib0", "10.9.0.1"),  interface("lo", "::1"),
          interface("eth0", "fe80::1"),  interface("eth0", "fd00::1"),
          interface("eth10", "fd00::10")};
}

std::string names(const std::vector<Interface>& all, const char* ifname, const char* family = "") {
  Config c;
  c.socket_ifname = ifname;
  c.socket_family = family;
  std::string out;
  for (const Interface& i : choose_interfaces(all, c)) out += (out.empty() ? "" : " ") + i.name;
  return out;
}

}  // namespace

TEST_CASE("NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY choose interfaces as in NCCL") {
  struct Row {
    const char* ifname;
    const char* family;
    const char* chosen;
  };
  const Row rows[] = {
      {"", "", "ib0 eth0 eth1 eth10"},
      {"", "AF_INET", "ib0 eth0 eth1"},
      {"", "AF_INET6", "eth0 eth10"},
      {"eth", "", "eth0 eth1 eth10"},
      {"eth1", "", "eth1 eth10"},
      {"=eth1", "", "eth1"},
      {"=eth1", "AF_INET6", ""},
      {"lo", "", "lo"},
      {"lo,eth0", "", "eth0 lo"},
      {"docker", "", "docker0"},
      {"^eth", "", "ib0"},
      {"^eth,ib", "", "docker0"},
      {"^eth,ib,docker", "", "lo"},
      {"^docker", "", "ib0 eth0 eth1 eth10"},
      {"^=eth1", "", "ib0 eth0 eth10"},
      {"^", "", "ib0 eth0 eth1 eth10"},
      {"wlan", "", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.ifname, row.family);
    CHECK(names(host(), row.ifname, row.family) == row.chosen);
  }
}

TEST_CASE("loopback serves when there is nothing else") {
  CHECK(names({interface("lo", "127.0.0.1")}, "") == "lo");
  CHECK(names({interface("lo", "127.0.0.1"), interface("docker0", "172.17.0.1")}, "") == "docker0");
  CHECK(names({}, "").empty());
}

Interface with_prefix(Interface i, int prefix) {
  i.prefix = prefix;
  return i;
}
Interface aside(Interface i) {
  i.aside = true;
  return i;
}

std::string first(const std::vector<Interface>& all, const Config& c = {}) {
  const auto chosen = choose_interfaces(all, c);
  return chosen.empty() ? "" : chosen[0].name + " " + chosen[0].address.text();
}

TEST_CASE("the interface that peers reach is chosen, whatever stands before it") {
  struct Row {
    const char* what;
    std::vector<Interface> all;
    const char* chosen;
  };
  const Row rows[] = {
      {"InfiniBand without an address",
       {interface("bond0", "10.9.0.1"), interface("ib0", "fe80::1"), interface("bond0", "fe80::2")},
       "bond0 10.9.0.1:0"},
      {"InfiniBand with one",
       {interface("bond0", "10.9.0.1"), interface("ib0", "10.8.0.1"), interface("ib0", "fe80::1")},
       "ib0 10.8.0.1:0"},
      {"a tunnel before IPv6",
       {interface("tun6", "fe80::1"), interface("eth0", "fd00:9::1"), interface("eth0", "fe80::2")},
       "eth0 [fd00:9::1]:0"},
      {"a tunnel with an address",
       {aside(interface("wg0", "10.200.0.1")), interface("eth0", "192.168.0.2")},
       "eth0 192.168.0.2:0"},
      {"a service's interface of one link",
       {interface("usb0", "169.254.3.1"), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"one link, and a second address",
       {interface("eth0", "169.254.3.1"), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"Compose",
       {interface("br-0123456789ab", "172.18.0.1"), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"an ordinary bridge",
       {interface("br-ex", "10.9.0.1"), interface("docker0", "172.17.0.1")},
       "br-ex 10.9.0.1:0"},
      {"libvirt",
       {interface("virbr0", "192.168.122.1"), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"CNI",
       {interface("cni0", "10.244.0.1"), interface("podman0", "10.88.0.1"),
        interface("eno1", "fd00::1")},
       "eno1 [fd00::1]:0"},
      {"a bridge without a way out",
       {aside(interface("lab0", "192.168.99.1")), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"a routed address on lo",
       {interface("lo", "127.0.0.1"), interface("lo", "10.0.0.5"), interface("eth0", "fe80::1")},
       "lo 10.0.0.5:0"},
      {"a service's address on lo",
       {interface("lo", "127.0.0.1"), interface("lo", "10.0.0.5"), interface("eth0", "10.9.0.1")},
       "eth0 10.9.0.1:0"},
      {"the whole of 127/8",
       {interface("lo", "127.0.0.1"), interface("lo", "127.1.2.3"), interface("eth0", "fe80::1")},
       "eth0 [fe80::1]:0"},
      {"what nobody can connect to",
       {interface("eth0", "0.0.0.0"), interface("lo", "127.0.0.1")},
       "lo 127.0.0.1:0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(first(row.all) == row.chosen);
  }
  Config named;
  named.socket_ifname = "eth";
  CHECK(first({interface("eth0", "fe80::1"), interface("eth1", "10.9.0.1")}, named) ==
        "eth1 10.9.0.1:0");
  named.socket_ifname = "lo";
  CHECK(first({interface("lo", "127.0.0.1"), interface("lo", "10.0.0.5")}, named) ==
        "lo 10.0.0.5:0");
  named.socket_ifname = "docker0";
  CHECK(first({interface("docker0", "172.17.0.1"), interface("eth0", "10.9.0.1")}, named) ==
        "docker0 172.17.0.1:0");
}

TEST_CASE("NCCL_COMM_ID: its network goes before others, behind InfiniBand's, as in NCCL") {
  std::vector<Interface> all{with_prefix(interface("docker0", "172.17.0.1"), 16),
                             with_prefix(interface("eth0", "10.9.0.1"), 24),
                             with_prefix(interface("eth1", "10.8.0.1"), 24),
                             with_prefix(interface("eth1", "fd00:8::1"), 64)};
  const std::pair<const char*, const char*> rows[] = {
      {"", "eth0 10.9.0.1:0"},
      {"10.8.0.7:1234", "eth1 10.8.0.1:0"},
      {"10.7.0.7:1234", "eth0 10.9.0.1:0"},
      {"[fd00:8::7]:1234", "eth1 [fd00:8::1]:0"},
      {"172.17.0.2:1234", "docker0 172.17.0.1:0"},
      {"node0:1234", "eth0 10.9.0.1:0"},
      {"[", "eth0 10.9.0.1:0"},
  };
  Config c;
  for (const auto& [id, chosen] : rows) {
    CAPTURE(id);
    c.comm_id = id;
    CHECK(first(all, c) == chosen);
  }
  c.comm_id = "10.8.0.7:1234";
  c.socket_ifname = "eth0";
  CHECK(first(all, c) == "eth0 10.9.0.1:0");
  c.socket_ifname = "";
  all.push_back(with_prefix(interface("ib0", "10.6.0.1"), 24));
  CHECK(first(all, c) == "ib0 10.6.0.1:0");
}

TEST_CASE("a bridge whose ports are cables to this host's containers leads nowhere") {
  const std::vector<Link> links{
      {1, 0, "lo", ""},         {2, 5, "eth0", ""},        {3, 6, "vnet0", "tun"},
      {4, 6, "veth1", "veth"},  {5, 0, "br0", "bridge"},   {6, 0, "lab0", "bridge"},
      {7, 0, "br1", "bridge"},  {8, 7, "bond0.5", "vlan"}, {9, 7, "veth2", "veth"},
      {10, 0, "vip0", "dummy"}, {11, 0, "veth3", "veth"}};
  const std::pair<const char*, bool> rows[] = {{"br0", false},  {"lab0", true}, {"br1", false},
                                               {"eth0", false}, {"vip0", true}, {"veth3", false},
                                               {"gone", false}};
  for (const auto& [name, wanted] : rows) {
    CAPTURE(name);
    CHECK(is_aside(links, name) == wanted);
  }
  const auto system = system_links();
  CHECK(std::any_of(system.begin(), system.end(), [](const Link& l) { return l.name == "lo"; }));
}

TEST_CASE("a global IPv6 address is preferred to a link-local one of the same interface") {
  Config c;
  c.socket_family = "AF_INET6";
  c.socket_ifname = "=eth0";
  const auto chosen = choose_interfaces(host(), c);
  REQUIRE(chosen.size() == 1);
  CHECK(chosen[0].address.text() == "[fd00::1]:0");
}

TEST_CASE("this machine has an interface, and loopback can be asked for by name") {
  CHECK(control_interface({}));
  Config c;
  c.socket_ifname = "=lo";
  auto lo = control_interface(c);
  REQUIRE(lo);
  CHECK(lo->name == "lo");
}

TEST_CASE("an interface that does not exist is reported with what was asked for and what exists") {
  Config c;
  c.socket_ifname = "nothere";
  test::LogCapture log;
  CHECK(control_interface(c).status() == Status::system);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "NCCL_SOCKET_IFNAME='nothere'"));
  CHECK(log.has(LogLevel::warn, "lo (127.0.0.1:0)"));
}

}  // namespace twinpath
