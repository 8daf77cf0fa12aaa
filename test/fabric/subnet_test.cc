// Networks that do not reach each other (NCCL_IB_SUBNET_AWARE_ROUTING).  A soft HCA's IPv4
// addresses are a /24 for each adapter, in one /16 for all of a job.
#include "proxy/connect/subnet_choice.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

ibv_gid gid(std::initializer_list<unsigned> bytes) {
  ibv_gid g{};
  std::size_t i = bytes.size() == 4 ? 12 : 0;
  if (i == 12) g.raw[10] = g.raw[11] = 0xff;
  for (const unsigned b : bytes) g.raw[i++] = static_cast<std::uint8_t>(b);
  return g;
}

Config aware(const char* hcas, int prefix = 24) {
  Config config = soft_config(hcas);
  config.ib_subnet_aware = true;
  config.ib_subnet_prefix = prefix;
  config.standby_ports = 0;
  return config;
}

// Over which adapters the world's next connection goes, as it says itself: the names in the order
// of the moves to RTR, whose address vectors name the other end.
std::vector<std::string> adapters_of(World& world, int from, int to) {
  Tap::raised.clear();
  Link link = world.connect(from, to);
  Buffer source(*link.send, 70'000, 5), target(*link.recv, 70'000);
  target.clear();
  Request* receive = start_recv(*link.recv, {target.receive(0)});
  finish(start_send(*link.send, source, 70'000, 0, receive));
  finish(receive);
  CHECK(target.holds(5, 70'000));
  std::vector<std::string> names;
  for (const Tap::Raised& r : Tap::raised)
    names.push_back("soft" + std::to_string(r.attr.ah_attr.grh.dgid.raw[14]));
  return names;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("addresses are of one network or not") {
  struct Row {
    const char* what;
    ibv_gid a, b;
    int prefix;
    bool same;
  };
  const ibv_gid v6{.raw = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
  ibv_gid v6_near = v6, v6_far = v6;
  v6_near.raw[8] = 99;
  v6_far.raw[7] = 2;
  const Row rows[] = {
      {"one /24", gid({10, 0, 1, 1}), gid({10, 0, 1, 200}), 24, true},
      {"two /24", gid({10, 0, 1, 1}), gid({10, 0, 2, 1}), 24, false},
      {"the same as /16", gid({10, 0, 1, 1}), gid({10, 0, 2, 1}), 16, true},
      {"a /31", gid({10, 0, 1, 4}), gid({10, 0, 1, 5}), 31, true},
      {"neighbours of two /31", gid({10, 0, 1, 5}), gid({10, 0, 1, 6}), 31, false},
      {"a /32", gid({10, 0, 1, 5}), gid({10, 0, 1, 5}), 32, true},
      {"a /1", gid({10, 0, 0, 1}), gid({127, 0, 0, 1}), 1, true},
      {"the other half", gid({10, 0, 0, 1}), gid({128, 0, 0, 1}), 1, false},
      {"IPv6, by 64 bits", v6, v6_near, 24, true},
      {"IPv6, another", v6, v6_far, 1, false},
      {"two families", v6, gid({10, 0, 1, 1}), 1, false},
      {"link-local is everywhere", gid({0xfe, 0x80}), gid({0xfe, 0x80}), 24, false},
      {"no address", ibv_gid{}, ibv_gid{}, 24, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(same_network(row.a, row.b, row.prefix) == row.same);
    CHECK(same_network(row.b, row.a, row.prefix) == row.same);
  }
}

TEST_CASE("the device on the peer's network is taken, if the named one is not") {
  const ibv_gid a = gid({10, 0, 1, 1}), b = gid({10, 0, 2, 1}), c = gid({10, 0, 3, 1});
  struct Row {
    const char* what;
    int named;
    std::vector<DeviceAddresses> devices;
    std::vector<ibv_gid> peer;
    int chosen;
    std::vector<ibv_gid> others = {};
  };
  const Row rows[] = {
      {"the named one does", 1, {{a}, {a}}, {a}, 1},
      {"the other one does", 0, {{a}, {b}}, {b}, 1},
      {"none does", 0, {{a}, {b}}, {c}, 0},
      {"the peer has none", 1, {{a}, {b}}, {}, 1},
      {"the first that does", 0, {{c}, {b}, {b}}, {b}, 1},
      {"InfiniBand or without an address", 0, {{}, {}, {b}}, {b}, 2},
      {"merged, both on the peer's networks", 2, {{a}, {b}, {a, b}}, {a, b}, 2},
      {"merged, one of them is not", 2, {{a}, {b}, {a, b}}, {b}, 1},
      {"a merged one where the peer's is", 0, {{c}, {a, b}}, {b, a}, 1},
      {"a ring: by another device of the peer's", 0, {{a}, {b}}, {c}, 1, {b}},
      {"the named one, by another of the peer's", 1, {{b}, {b}}, {c}, 1, {b}},
      {"the peer's named device goes before", 0, {{a}, {b}}, {b}, 1, {a}},
      {"none by any of the peer's", 1, {{a}, {a}}, {c}, 1, {b}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(choose_by_network(row.named, row.devices, row.peer, row.others, 24) == row.chosen);
  }
}

TEST_CASE("a connection goes over devices on one network, whatever device was named") {
  LogCapture log;
  World world(aware("soft0,soft1,soft2"), -1, Tap::on);
  // The connector goes to the listener's network.
  CHECK(adapters_of(world, 0, 1) == Names{"soft1", "soft1"});
  CHECK(log.has(LogLevel::info, "soft1 is taken in place of soft0"));
  CHECK(adapters_of(world, 2, 2) == Names{"soft2", "soft2"});
  // A merged listener's first network is as good as its second; the acceptor then keeps to it.
  const int merged = world.merge({1, 2});
  CHECK(adapters_of(world, 0, merged) == Names{"soft1", "soft1"});
  // And a merged connector reaches one port of the two only.
  CHECK(adapters_of(world, merged, 2) == Names{"soft2", "soft2"});
  CHECK(log.warnings().empty());
  // Memory that was registered with another comm may be on another device.
  CHECK_FALSE((*world.transport->device(0)).global_memory);
}

TEST_CASE("a longer prefix, or none asked for, leaves the named device") {
  {
    World world(aware("soft0,soft1", 16), -1, Tap::on);
    CHECK(adapters_of(world, 0, 1) == Names{"soft0", "soft1"});
  }
  {
    Config config = aware("soft0,soft1");
    config.ib_subnet_aware = false;
    World world(config, -1, Tap::on);
    CHECK(adapters_of(world, 0, 1) == Names{"soft0", "soft1"});
    CHECK((*world.transport->device(0)).global_memory);
  }
}

TEST_CASE("a listener that chooses nothing tells its address to a connector that does") {
  Config plain = aware("soft0,soft1");
  plain.ib_subnet_aware = false;
  LogCapture log;
  World chooses(aware("soft0,soft1")), listens(plain);
  Link link = connect(*chooses.a, 0, *listens.b, 1);
  CHECK(log.has(LogLevel::info, "soft1 is taken in place of soft0"));
  exchange(link);
}

TEST_CASE("a connection that takes many calls is gone on with by the device that was named") {
  World world(aware("soft0,soft1"));
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  std::unique_ptr<SendComm> send;
  REQUIRE(world.a->connect(0, handle, send) == Status::again);
  {
    LogCapture log;
    CHECK(world.a->connect(1, handle, send) == Status::bad_argument);
  }
  std::unique_ptr<RecvComm> recv;
  REQUIRE(eventually([&] {
    if (send == nullptr) REQUIRE(world.a->connect(0, handle, send) != Status::bad_argument);
    if (recv == nullptr) (void)listener->accept(recv);
    return send != nullptr && recv != nullptr;
  }));
}

}  // namespace twinpath::test
