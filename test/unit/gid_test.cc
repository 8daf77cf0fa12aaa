// Choice of the GID of a port.
#include <arpa/inet.h>

#include <cstring>

#include "plugin/fabric/fabric.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

GidEntry entry(int index, const char* address, int version) {
  GidEntry e;
  e.index = index;
  e.roce_version = version;
  const std::string text =
      std::strchr(address, ':') != nullptr ? address : "::ffff:" + std::string(address);
  REQUIRE(inet_pton(AF_INET6, text.c_str(), e.gid.raw) == 1);
  return e;
}

// As a real RoCE port shows it: v1 and v2 of each address in turn, link-local first.
Port roce_port() {
  Port p;
  p.device = "mlx5_2";
  p.roce = true;
  p.gids = {entry(0, "fe80::1", 1),     entry(1, "fe80::1", 2),    entry(2, "10.1.2.3", 1),
            entry(3, "10.1.2.3", 2),    entry(4, "fd00::3", 1),    entry(5, "fd00::3", 2),
            entry(8, "192.168.0.3", 1), entry(9, "192.168.0.3", 2)};
  return p;
}

int chosen(const Port& port, const Config& config) {
  std::string why;
  auto gid = choose_gid(port, config, why);
  REQUIRE(gid);
  return gid->index;
}

}  // namespace

TEST_CASE("the automatic GID choice follows family, range and RoCE version") {
  const Port port = roce_port();
  Config c;
  CHECK(chosen(port, c) == 3);
  c.ib_roce_version = 1;
  CHECK(chosen(port, c) == 2);
  c.ib_addr_range = "192.168.0.0/24";
  CHECK(chosen(port, c) == 8);
  c.ib_roce_version = 2;
  CHECK(chosen(port, c) == 9);
  c.ib_addr_range = "fd00::/8";  // of the other family: not meant for IPv4
  CHECK(chosen(port, c) == 3);
  c.ib_addr_family = "AF_INET6";
  CHECK(chosen(port, c) == 5);
  c.ib_addr_range = "fd01::/16";  // nothing fits: index 0
  CHECK(chosen(port, c) == 0);
}

TEST_CASE("range prefixes are compared bit by bit") {
  Port port = roce_port();
  port.gids = {entry(0, "10.1.127.1", 2), entry(1, "10.1.128.1", 2)};
  Config c;
  c.ib_addr_range = "10.1.128.0/17";
  CHECK(chosen(port, c) == 1);
  c.ib_addr_range = "10.1.128.0/16";
  CHECK(chosen(port, c) == 0);
  c.ib_addr_range = "0.0.0.0/0";
  CHECK(chosen(port, c) == 0);
}

TEST_CASE("D19: GIDs of unknown RoCE version are chosen last and always the same") {
  Port port = roce_port();
  port.gids = {entry(0, "fe80::1", 0), entry(1, "10.1.2.3", 0), entry(2, "10.1.2.4", 1),
               entry(3, "10.1.2.5", 0)};
  CHECK(chosen(port, {}) == 2);
  port.gids[2] = entry(2, "10.1.2.4", 2);
  CHECK(chosen(port, {}) == 2);
  port.gids[2] = entry(2, "10.1.2.4", 0);
  CHECK(chosen(port, {}) == 1);
}

TEST_CASE("a wanted GID index is taken as it is, whatever its address") {
  Config c;
  c.ib_gid_index = 1;
  CHECK(chosen(roce_port(), c) == 1);
}

TEST_CASE("a GID index out of range or without a GID is refused and the good ones are named") {
  Port port = roce_port();
  GidEntry zero;
  zero.index = 6;
  port.gids.insert(port.gids.begin() + 6, zero);
  for (int index : {6, 7, 300}) {
    Config c;
    c.ib_gid_index = index;
    std::string why;
    const auto gid = choose_gid(port, c, why);
    CHECK(gid.status() == Status::bad_argument);
    CHECK(why.find("mlx5_2:1: NCCL_IB_GID_INDEX=" + std::to_string(index)) == 0);
    CHECK(why.find("indices in use: 0-5, 8-9;") != std::string::npos);
  }
}

TEST_CASE("an empty GID table of a RoCE port is an error, of an InfiniBand port it is not") {
  Port port;
  port.device = "mlx5_0";
  port.roce = true;
  std::string why;
  CHECK(choose_gid(port, {}, why).status() == Status::bad_argument);
  CHECK(why.find("mlx5_0:1: the GID table is empty") == 0);
  port.roce = false;
  CHECK(chosen(port, {}) == 0);
}

TEST_CASE("InfiniBand ports use their first GID and ignore the wanted index") {
  Port port = roce_port();
  port.roce = false;
  Config c;
  c.ib_gid_index = 300;
  CHECK(chosen(port, c) == 0);
}

TEST_CASE("when only later entries exist the first of them is taken") {
  Port port = roce_port();
  port.gids = {entry(4, "fe80::1", 2), entry(5, "fe80::2", 2)};
  CHECK(chosen(port, {}) == 4);
}

}  // namespace twinpath
