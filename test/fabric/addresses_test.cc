// Addresses that change while the process runs: an interface loses its address and gets it back,
// at another index of the port's GID table, or a larger MTU.
#include "plugin/base/host.h"
#include "plugin/rdma/handle.h"
#include "test/fabric/event_feed.h"
#include "test/fabric/failover.h"
#include "test/fabric/world.h"
#include "test/support/moving_gids.h"

namespace twinpath::test {
namespace {

using Moving = MovingGids;

void moving(Fabric& fabric) {
  EventFeed::on(fabric);
  Moving::on(fabric);
}

// A new connection of the world's sessions carries a message; by which GID index and MTU.
struct Used {
  int index;
  ibv_mtu mtu;
  friend bool operator==(const Used&, const Used&) = default;
};
std::vector<Used> connect_once(World& world, Listener* listener = nullptr,
                               HandleArray handle = {}) {
  Moving::raised.clear();
  Link link;
  if (listener == nullptr)
    link = world.connect();
  else
    world.connect_to(0, *listener, handle, link);
  Buffer from(*link.send, 5000, 3), to(*link.recv, 5000);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  finish(start_send(*link.send, from, 5000, 0, receive));
  finish(receive);
  CHECK(to.holds(3, 5000));
  std::vector<Used> out;
  for (const ibv_qp_attr& a : Moving::raised) out.push_back({a.ah_attr.grh.sgid_index, a.path_mtu});
  return out;
}

}  // namespace

TEST_CASE("an address that moves in the GID table is found where it is now, without an event") {
  LogCapture log;
  EventFeed feed;
  World world(soft_config(), -1, moving);
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  using Both = std::vector<Used>;
  CHECK(connect_once(world) == Both{{0, IBV_MTU_4096}, {0, IBV_MTU_4096}});
  Moving::places = {5};
  CHECK(connect_once(world) == Both{{5, IBV_MTU_4096}, {5, IBV_MTU_4096}});
  Moving::places = {2};
  // A listener from before does not keep the old one, either.
  CHECK(connect_once(world, listener.get(), handle) == Both{{2, IBV_MTU_4096}, {2, IBV_MTU_4096}});
  CHECK(log.warnings().empty());
}

TEST_CASE(
    "an address that comes besides the one in use is taken after its event, if it is better") {
  LogCapture log;
  EventFeed feed;
  World world(soft_config("soft0"), -1, moving);
  const auto connect = [&] {
    Link link = world.connect(0, 0);
    return Moving::raised.back().ah_attr.grh.sgid_index;
  };
  Moving::places = {5};
  CHECK(int{connect()} == 5);
  Moving::places = {2, 5};
  Moving::gid_queries = 0;
  CHECK(int{connect()} == 5);
  CHECK(Moving::gid_queries <= 3 * 2);  // the table is not read for each connection
  ibv_async_event event{};
  event.event_type = IBV_EVENT_GID_CHANGE;
  event.element.port_num = 1;
  EventFeed::send(Tap::context_of("soft0"), event);
  CHECK(int{connect()} == 2);
}

TEST_CASE("a connection takes the MTU that the ports have when it is made") {
  EventFeed feed;
  World world(soft_config(), -1, moving);
  for (const ibv_mtu mtu : {IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_512}) {
    Moving::mtu = mtu;
    for (const Used& used : connect_once(world)) CHECK(used.mtu == mtu);
  }
}

TEST_CASE("one address on two hosts is refused with its name, and two addresses are not") {
  LogCapture log;
  World world;
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  const auto listen = [&](int device) {
    REQUIRE(world.b->listen(device, handle, listener) == Status::ok);
    Handle h;
    std::string why;
    REQUIRE(decode_handle(handle, h, why));
    ++h.host_hash;  // as one that came from elsewhere
    encode_handle(h, handle);
  };
  listen(0);
  Status a = Status::again, b = Status::again;
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;
  REQUIRE(eventually([&] {
    if (a == Status::again) a = world.a->connect(0, handle, send);
    if (b == Status::again) b = listener->accept(recv);
    return a != Status::again && b != Status::again;
  }));
  CHECK(a == Status::system);
  CHECK(b == Status::remote);  // told by the other end
  CHECK(log.warnings().size() == 2);
  for (const std::string& line : log.warnings()) {
    CHECK(line.find("soft0 of " + host_name()) != std::string::npos);
    CHECK(line.find("have the same address ::ffff:") != std::string::npos);
    CHECK(line.find("NCCL_IB_ADDR_RANGE") != std::string::npos);
  }
  listen(1);
  Link link;
  world.connect_to(0, *listener, handle, link);
  CHECK(log.warnings().size() == 2);
}

TEST_CASE("without any address connect and listen say so, and go on when there is one again") {
  LogCapture log;
  EventFeed feed;
  World world(soft_config(), -1, moving);
  Moving::places.clear();
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  CHECK(world.b->listen(1, handle, listener) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "soft1:1: the GID table is empty"));
  Moving::places = {7};
  CHECK(connect_once(world).front().index == 7);
}

// F9.  All ports at once, which is the worst: there is no other to go over.
TEST_CASE("F9: a connection over several ports goes on with the addresses that they have now") {
  LogCapture log;
  EventFeed feed;
  Config c = soft_config("soft0,soft1,soft2,soft3");
  c.soft_copy_threads = 0;
  World world(c, -1, moving);
  Link link = world.connect(merge_devices(*world.transport, {0, 1}),
                            merge_devices(*world.transport, {2, 3}));
  Stream stream(link, {}, 3);
  CHECK(stream.run(50));
  const auto raised_with = [&](int index) {
    const std::vector<int> all = Moving::indices_raised();
    return std::count(all.begin(), all.end(), index) != 0;
  };
  const auto put = [&](std::vector<int> places, bool tell) {
    Moving::put(std::move(places));
    for (const char* device : {"soft0", "soft1", "soft2", "soft3"}) {
      ibv_async_event event{};
      event.event_type = IBV_EVENT_GID_CHANGE;
      event.element.port_num = 1;
      if (tell) EventFeed::send(Tap::context_of(device), event);
    }
  };
  SECTION("moved, with an event") {
    put({5}, true);
    CHECK(eventually([&] { return !stream.run_for(10) || raised_with(5); }));
  }
  SECTION("moved, without an event") {
    put({5}, false);
    CHECK(eventually([&] { return !stream.run_for(10) || raised_with(5); }));
  }
  SECTION("gone for a while") {
    put({}, true);
    CHECK(stream.run_for(300));
    put({6}, true);
    CHECK(eventually([&] { return !stream.run_for(10) || raised_with(6); }));
    CHECK(log.has("has lost the address"));
  }
  CHECK(stream.run(stream.received() + 200));
  CAPTURE(stream.failure, log.warnings());
  CHECK(stream.failure.empty());
}

}  // namespace twinpath::test
