// Devices merged from several ports: properties, unequal counts and unequal speeds.
#include "proxy/send/send_comm.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

void exchange(World& world, int from_device, int to_device) {
  Link link = world.connect(from_device, to_device);
  unsigned seed = 1;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{65536},
                            std::size_t{1} << 20, (std::size_t{1} << 20) + 333}) {
    Buffer from(*link.send, bytes, seed), to(*link.recv, bytes);
    to.clear();
    Request* receive = start_recv(*link.recv, {to.receive(0)});
    CHECK(finish(start_send(*link.send, from, bytes, 0, receive)).bytes[0] == bytes);
    CHECK(finish(receive).bytes[0] == bytes);
    CHECK(to.holds(seed++, bytes));
  }
}

TEST_CASE("A merged device adds up its members") {
  World world(soft_config("soft0,speed=400,soft1,speed=200"));
  REQUIRE(world.transport->device_count() == 2);
  const int both[] = {0, 1};
  auto merged = world.transport->make_virtual_device(both);
  REQUIRE(merged);
  CHECK(*merged == 2);
  CHECK(world.transport->device_count() == 3);
  auto a = world.transport->device(0), b = world.transport->device(1),
       m = world.transport->device(2);
  REQUIRE(m);
  CHECK(m->name == "soft0+soft1");
  CHECK(m->speed_mbps == a->speed_mbps + b->speed_mbps);
  CHECK(m->members == std::vector<int>{0, 1});
  CHECK(a->members == std::vector<int>{0});
  CHECK(m->guid != a->guid);
  CHECK(m->guid != b->guid);
  CHECK(a->guid != b->guid);
  CHECK(m->guid != 0);
  CHECK(m->max_message_bytes > 0);
  CHECK(m->max_message_bytes <= std::size_t{1} << 30);
}

TEST_CASE("A merged device has its members' rail, and a plane that no other has") {
  Config config = soft_config("a,b,c,d,e");
  config.ib_hca = "=a::0:4,b::0:9,c::1:4,d::0:4,e";
  World world(config);
  const auto props = [&](int index) {
    auto p = world.transport->device(index);
    REQUIRE(p);
    return std::move(p).take();
  };
  CHECK(props(0).rail_id == 0);
  CHECK(props(0).plane_id == 4);
  CHECK(props(4).rail_id == -1);
  CHECK(props(4).plane_id == -1);
  struct Row {
    std::vector<int> members;
    int rail, plane;
  };
  // Plane 4 is the host's first, 9 its second, "not named" number 0.
  const Row rows[] = {{{0, 1}, 0, 0x4006},  {{0, 2}, -1, 0x4002}, {{0, 3}, 0, 0x4002},
                      {{0, 4}, -1, 0x4003}, {{4, 0}, -1, 0x4003}, {{0}, 0, 4},
                      {{4}, -1, -1}};
  for (const Row& row : rows) {
    CAPTURE(row.members);
    auto merged = world.transport->make_virtual_device(row.members);
    REQUIRE(merged);
    CHECK(props(*merged).rail_id == row.rail);
    CHECK(props(*merged).plane_id == row.plane);
  }
}

TEST_CASE("Merged ports without planes have none, and neither have those of too many") {
  Config config = soft_config("20");
  World unnamed(config);
  const int both[] = {0, 1};
  auto merged = unnamed.transport->make_virtual_device(both);
  REQUIRE(merged);
  CHECK(unnamed.transport->device(*merged)->rail_id == -1);
  CHECK(unnamed.transport->device(*merged)->plane_id == -1);
  for (int i = 0; i < 20; ++i)
    config.ib_hca += (i == 0 ? "=soft" : ",soft") + std::to_string(i) + ":::" + std::to_string(i);
  World many(config);
  const int last[] = {12, 13};
  merged = many.transport->make_virtual_device(last);
  REQUIRE(merged);
  CHECK(many.transport->device(*merged)->plane_id == -1);
  merged = many.transport->make_virtual_device(both);
  REQUIRE(merged);
  CHECK(many.transport->device(*merged)->plane_id == 0x4006);
}

TEST_CASE("A device cannot be merged from nothing, from strangers or twice from itself") {
  LogCapture log;
  World world;
  const int twice[] = {0, 0}, unknown[] = {0, 7};
  CHECK(world.transport->make_virtual_device({}).status() == Status::bad_argument);
  CHECK(world.transport->make_virtual_device(twice).status() == Status::bad_argument);
  CHECK(world.transport->make_virtual_device(unknown).status() == Status::bad_argument);
  CHECK(world.transport->device_count() == 2);
  CHECK(log.warnings().size() == 3);
}

TEST_CASE("Two rails of unequal speed carry one message together") {
  World world(soft_config("soft0,speed=400,soft1,speed=100,soft2,speed=400,soft3,speed=100"));
  const int ab[] = {0, 1}, cd[] = {2, 3};
  auto left = world.transport->make_virtual_device(ab);
  auto right = world.transport->make_virtual_device(cd);
  REQUIRE(left);
  REQUIRE(right);
  exchange(world, *left, *right);
}

TEST_CASE("D2: unequal numbers of rails use the keys of the right rail, both ways round") {
  World world(soft_config("soft0,soft1,soft2,soft3"));
  const int abc[] = {0, 1, 2};
  auto three = world.transport->make_virtual_device(abc);
  REQUIRE(three);
  exchange(world, *three, 3);
  exchange(world, 3, *three);
}

TEST_CASE("D1: eight rails complete only when all of them have") {
  Config config = soft_config("8");
  config.ib_split_data_on_qps = true;
  World world(config);
  const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};
  auto device = world.transport->make_virtual_device(all);
  REQUIRE(device);
  exchange(world, *device, *device);
}

TEST_CASE("D9: ports of unequal numbers connect") {
  World world(soft_config("soft0,ports=2"));
  REQUIRE(world.transport->device_count() == 2);
  auto a = world.transport->device(0), b = world.transport->device(1);
  CHECK(a->guid != b->guid);
  CHECK(a->port == 1);
  CHECK(b->port == 2);
  exchange(world, 0, 1);
  exchange(world, 1, 0);
}

TEST_CASE("D8: one peer with a small MTU leaves other connections as they are") {
  World world(soft_config("soft0,mtu=4096,soft1,mtu=1024,soft2,mtu=4096"), -1, Tap::on);
  auto path_mtus = [&](int from, int to) {
    Tap::raised.clear();
    exchange(world, from, to);
    std::vector<ibv_mtu> mtus;
    for (const Tap::Raised& q : Tap::raised) mtus.push_back(q.attr.path_mtu);
    return mtus;
  };
  CHECK(path_mtus(0, 1) == std::vector{IBV_MTU_1024, IBV_MTU_1024});
  CHECK(path_mtus(0, 2) == std::vector{IBV_MTU_4096, IBV_MTU_4096});
  CHECK(path_mtus(1, 2) == std::vector{IBV_MTU_1024, IBV_MTU_1024});
  CHECK(path_mtus(2, 0) == std::vector{IBV_MTU_4096, IBV_MTU_4096});
}

// Service level and traffic class that the sender's and the receiver's queue really have.
struct Classes {
  int send_sl = -1, send_tc = -1, recv_sl = -1, recv_tc = -1;
  friend bool operator==(const Classes&, const Classes&) = default;
};

Classes classes_of(const Config& config, int traffic_class) {
  World world(config, traffic_class, Tap::on);
  exchange(world, 0, 1);
  Classes c;
  for (const Tap::Raised& q : Tap::raised) {
    const bool sender = q.send_depth == kSendDepth;
    (sender ? c.send_sl : c.recv_sl) = q.attr.ah_attr.sl;
    (sender ? c.send_tc : c.recv_tc) = q.attr.ah_attr.grh.traffic_class;
  }
  CHECK(Tap::raised.size() == 2);
  return c;
}

// NCCL's manual, "Quality of Service".
TEST_CASE("D20: a communicator's traffic class is RoCE's class and InfiniBand's service level") {
  Config config = soft_config();
  CHECK(classes_of(config, -1) == Classes{0, 0, 0, 0});
  CHECK(classes_of(config, 106) == Classes{0, 106, 0, 106});
  config.ib_sl = 3;
  CHECK(classes_of(config, 106) == Classes{3, 106, 3, 106});
  config.ib_fifo_tc = 7;  // clear-to-sends, which is all that a receiver sends
  CHECK(classes_of(config, 106) == Classes{3, 106, 3, 7});
  config.ib_tc = 200;  // the user's setting wins
  CHECK(classes_of(config, 106) == Classes{3, 200, 3, 7});

  config = soft_config("soft0,link=ib,soft1,link=ib");
  config.ib_adaptive_routing = 0;  // a sender's queues are told by their depth
  CHECK(classes_of(config, -1) == Classes{0, 0, 0, 0});
  CHECK(classes_of(config, 5) == Classes{5, 0, 5, 0});
  config.ib_tc = 200;
  CHECK(classes_of(config, 5) == Classes{5, 200, 5, 200});
  config.ib_sl = 0;
  CHECK(classes_of(config, 5) == Classes{0, 200, 0, 200});
  config.ib_sl = -1;
  LogCapture log;
  CHECK(classes_of(config, 106) == Classes{0, 200, 0, 200});
  CHECK(log.has(LogLevel::warn, "traffic class 106 is no service level of soft0"));
}

// Where switches route adaptively a long piece leaves its size to a write behind it, a short one
// has its own in the completion: whichever comes last, the message's is both.
TEST_CASE("A message in a long and a short piece has its whole size, whichever comes last") {
  const bool short_first = GENERATE(false, true);
  const std::string fast = ",speed=400,", slow = ",speed=40,";
  CAPTURE(short_first);
  Config c = soft_config("soft0" + (short_first ? slow : fast) + "soft1" +
                         (short_first ? fast : slow) + "soft2" + (short_first ? slow : fast) +
                         "soft3" + (short_first ? fast : slow).substr(0, fast.size() - 1));
  c.ib_adaptive_routing = 1;
  c.ib_ar_threshold = 1000;
  c.stripe_min = Bytes{256};
  c.measure_rails = false;
  World w(c);
  Link link = w.connect(w.merge({0, 1}), w.merge({2, 3}));
  for (unsigned i = 1; i <= 40; ++i) exchange(link, 4096 + 128 * (i % 3), i, 100);
  for (unsigned i = 1; i <= 4; ++i) exchange(link, 300'000, i, 100);
}

}  // namespace
}  // namespace twinpath::test
