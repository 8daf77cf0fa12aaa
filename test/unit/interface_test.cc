// Choice of the control interface.
#include <arpa/inet.h>

#include <cstring>

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
      {"lo,eth0", "", "lo eth0"},
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
