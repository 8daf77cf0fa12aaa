// Choice of the GID of a port.
#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "plugin/fabric/fabric.h"
#include "plugin/rdma/live_ports.h"
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
  c.ib_addr_range = "fd01::/16";  // nothing fits
  CHECK(chosen(port, c) == 5);
}

struct Table {
  const char* what;
  std::vector<GidEntry> gids;
  int chosen;
};

TEST_CASE("the automatic choice takes the entry that peers reach, whatever stands before it") {
  const Table tables[] = {
      {"IPv6 alone",
       {entry(0, "fe80::1", 1), entry(1, "fe80::1", 2), entry(2, "fd00::3", 1),
        entry(3, "fd00::3", 2)},
       3},
      {"with holes",
       {entry(4, "fe80::1", 1), entry(9, "fe80::1", 2), entry(300, "2001:db8::3", 2)},
       300},
      {"IPv4 of one link",
       {entry(0, "169.254.1.2", 1), entry(1, "169.254.1.2", 2), entry(2, "10.1.2.3", 1),
        entry(3, "10.1.2.3", 2)},
       3},
      {"IPv4 of one link, IPv6 of more", {entry(0, "169.254.1.2", 2), entry(1, "fd00::3", 2)}, 1},
      {"of one link each",
       {entry(0, "fe80::1", 1), entry(1, "fe80::1", 2), entry(2, "169.254.1.2", 1),
        entry(3, "169.254.1.2", 2)},
       3},
      {"fe80 alone", {entry(0, "fe80::1", 1), entry(1, "fe80::1", 2)}, 1},
      {"the whole of fe80::/10", {entry(0, "febf::1", 2), entry(1, "fd00::3", 2)}, 1},
      {"version 1 is not routed", {entry(0, "10.1.2.3", 1), entry(1, "fd00::3", 2)}, 1},
      {"version 1 alone", {entry(0, "fe80::1", 1), entry(1, "10.1.2.3", 1)}, 1},
      {"loopback", {entry(0, "127.0.0.1", 2), entry(1, "fe80::1", 2)}, 1},
      {"nobody's", {entry(0, "ff02::1", 2), entry(1, "0.0.0.0", 2), entry(2, "fe80::1", 2)}, 2},
      {"VLANs: the first of equals", {entry(2, "10.1.2.3", 2), entry(5, "10.2.2.3", 2)}, 2},
  };
  for (const Table& t : tables) {
    CAPTURE(t.what);
    Port port = roce_port();
    port.gids = t.gids;
    CHECK(chosen(port, {}) == t.chosen);
  }
}

TEST_CASE("wishes that no GID fulfils are named with what there is; fulfilled ones are not") {
  struct Row {
    const char* family;
    const char* range;
    int version;
    int chosen;
    const char* remark;
  };
  const Row rows[] = {
      {"AF_INET", "", 2, 3, ""},
      {"AF_INET", "10.1.0.0/16", 2, 3, ""},
      {"AF_INET", "10.1.2.3/32", 2, 3, ""},
      {"AF_INET", "172.16.0.0/12", 2, 3, "no address is in NCCL_IB_ADDR_RANGE=172.16.0.0/12"},
      {"AF_INET", "fd00::/8", 2, 3, "NCCL_IB_ADDR_RANGE=fd00::/8 is no range of"},
      {"AF_INET6", "fd00::/8", 2, 5, ""},
      {"AF_INET6", "fd01::/16", 2, 5, "no address is in NCCL_IB_ADDR_RANGE=fd01::/16"},
      {"AF_INET6", "fe80::/10", 2, 1, ""},  // asked for by name
      {"AF_INET", "", 1, 2, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.family, row.range, row.version);
    Config c;
    c.ib_addr_family = row.family;
    c.ib_addr_range = row.range;
    c.ib_roce_version = row.version;
    std::string why;
    auto gid = choose_gid(roce_port(), c, why);
    REQUIRE(gid);
    CHECK(gid->index == row.chosen);
    CHECK(why.empty() == (*row.remark == 0));
    if (*row.remark == 0) continue;
    CHECK(why.find(row.remark) != std::string::npos);
    CHECK(why.find("GID index " + std::to_string(row.chosen) +
                   " of these is taken: 0 is fe80::1 "
                   "(RoCE v1), 1 is fe80::1 (RoCE v2), 2 is 10.1.2.3 (RoCE v1)") !=
          std::string::npos);
  }
  Port old = roce_port();
  old.gids = {entry(0, "10.1.2.3", 1)};
  std::string why;
  CHECK(choose_gid(old, {}, why)->index == 0);
  CHECK(why.find("no better address has NCCL_IB_ROCE_VERSION_NUM=2") != std::string::npos);
  Config six;
  six.ib_addr_family = "AF_INET6";
  old.gids = {entry(0, "10.1.2.3", 2)};
  CHECK(choose_gid(old, six, why)->index == 0);
  CHECK(why.find("no better address is of NCCL_IB_ADDR_FAMILY=AF_INET6") != std::string::npos);
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

TEST_CASE("InfiniBand ports use the GID with a floating LID where there is one") {
  Port port = roce_port();
  port.roce = false;
  port.gids = {entry(0, "fe80::1", 0), entry(1, "fec0:0:c123:2::1", 0),
               entry(2, "fec0:0:c124:2::1", 0)};
  Config c;
  CHECK(chosen(port, c) == 1);
  c.ib_flid_gid_index = 2;
  CHECK(chosen(port, c) == 2);
  for (const int without : {-1, 0, 3}) {
    c.ib_flid_gid_index = without;
    CHECK(chosen(port, c) == 0);
  }
}

TEST_CASE("when only later entries exist the first of them is taken") {
  Port port = roce_port();
  port.gids = {entry(4, "fe80::1", 2), entry(5, "fe80::2", 2)};
  CHECK(chosen(port, {}) == 4);
}

TEST_CASE("an entry that may not be asked for has not changed") {
  static int error;
  Fabric fabric;
  fabric.ports.push_back(roce_port());
  fabric.verbs.query_gid = [](ibv_context*, std::uint8_t, int, ibv_gid*) {
    errno = error;
    return -1;
  };
  const LivePorts live(fabric);
  const Port& port = fabric.ports.front();
  for (const int refused : {EPERM, EACCES, ENOSYS}) {
    error = refused;
    CHECK(live.still_there(port, port.gids.front()));
  }
  for (const int gone : {0, ENODATA, EINVAL}) {
    error = gone;
    CHECK_FALSE(live.still_there(port, port.gids.front()));
  }
}

}  // namespace twinpath
