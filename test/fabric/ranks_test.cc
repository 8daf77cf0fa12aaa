// The promises of bytes and progress between two processes: the other one is this program again,
// started with a role.
#include "test/fabric/rank.h"
#include "test/fabric/shapes.h"
#include "test/fabric/traffic.h"
#include "test/support/child_process.h"
#include "test/support/needs.h"

namespace twinpath::test {
namespace {

constexpr std::int64_t kRankLimit = 30000;  // ms; another process may have to wait for a core
const std::size_t kRankCounts[] = {1, 2, 3, 8, 15, 16, 17, 31, 32};
const std::size_t kSilentCounts[] = {1, 2, 16, 32};

// One process's end of a connection each way.
struct Station {
  Station(const Shape& shape, int fd) {
    const Config config = shaped_config(shape);
    auto fabric = open_fabric(config);
    REQUIRE(fabric);
    auto made = make_proxy_transport(std::move(fabric).take(), config);
    REQUIRE(made);
    transport = std::move(made).take();
    auto opened = transport->open_session({1, -1});
    REQUIRE(opened);
    session = std::move(opened).take();
    device = shaped_device(*transport, shape, 0);
    link = meet(fd);
  }
  Link meet(int fd) {
    Link met;
    HandleArray mine{}, theirs{};
    std::unique_ptr<Listener> listener;
    REQUIRE(session->listen(device, mine, listener) == Status::ok);
    REQUIRE(tell(fd, mine));
    REQUIRE(hear(fd, theirs));
    REQUIRE(eventually([&] {
      if (!met.send) (void)session->connect(device, theirs, met.send);
      if (!met.recv) (void)listener->accept(met.recv);
      return met.send && met.recv;
    }));
    return met;
  }
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Session> session;
  int device = 0;
  Link link;
};

Mix small_messages(bool child) {
  Mix mix;
  mix.seed = child ? 2 : 1;
  mix.groups = 2000;
  return mix;
}

// Each role is played by both processes, or by each its own part of it; what went wrong, or empty.
std::string play_traffic(Station& s, int, bool child) {
  TrafficSender sender(*s.link.send, small_messages(child));
  TrafficReceiver receiver(*s.link.recv, small_messages(!child));
  return drive({&sender, &receiver});
}

std::string play_exchange(Station& s, int fd, bool) {
  for (const std::size_t messages : kRankCounts)
    for (const bool reversed : {false, true}) {
      const std::string failure =
          exchange(s.link, {messages, reversed ? 3u : 1u, reversed}, kRankLimit);
      if (!failure.empty()) return std::to_string(messages) + " messages: " + failure;
      // Its buffers are gone: the other one must have received all before it goes on, too.
      char there = 0;
      if (!tell(fd, char{1}) || !hear(fd, there)) return "the other process has gone";
    }
  return {};
}

// The child sends and is silent then, asleep in the kernel.
std::string play_silence(Station& s, int fd, bool child) {
  for (const std::size_t messages : kSilentCounts)
    for (const std::size_t bytes : {64, 5000}) {
      const Exchange e{messages, 1, false, {bytes}};
      char there = 0;
      const std::string what =
          std::to_string(messages) + " of " + std::to_string(bytes) + " bytes: ";
      if (child) {
        if (!hear(fd, there)) return what + "the receiver has gone";
        Sends sends(*s.link.send, e);
        if (!eventually([&] { return sends.try_next(); }, kRankLimit))
          return what + "only " + std::to_string(sends.accepted()) + " sends were accepted";
        if (!tell(fd, char{1}) || !hear(fd, there)) return what + "the receiver has gone";
        if (!eventually([&] { return sends.test_all(); }, kRankLimit))
          return what + "sends do not end";
        if (!sends.failure.empty()) return what + sends.failure;
        continue;
      }
      Receives receives(*s.link.recv, e);
      (void)eventually([&] { return receives.test_all(); }, 5);  // the cells get there
      if (!tell(fd, char{1}) || !hear(fd, there)) return what + "the sender has gone";
      if (!eventually([&] { return receives.test_all(); }, kRankLimit))
        return what + "nothing comes";
      if (!receives.failure.empty()) return what + receives.failure;
      if (!receives.hold_their_bytes()) return what + "wrong bytes";
      if (!tell(fd, char{1})) return what + "the sender has gone";
    }
  return {};
}

struct Play {
  const char* name;
  std::string (*act)(Station&, int fd, bool child);
};
constexpr Play kPlays[] = {
    {"traffic", play_traffic}, {"exchange", play_exchange}, {"silence", play_silence}};

void play_with_child(const char* name) {
  NEEDS(!kSanitizesThreads, "order through another process is hidden from the thread sanitizer");
  const Shape shape = GENERATE(from_range(all_shapes()));
  INFO(shape);
  ChildProcess child(name);
  REQUIRE(tell(child.fd, shape));
  Station station(shape, child.fd);
  std::string failure;
  for (const Play& play : kPlays)
    if (play.name == std::string(name)) failure = play.act(station, child.fd, false);
  CHECK(failure == "");
  if (failure.empty()) CHECK(child.finish() == 0);
}

TEST_CASE("Small messages out of order keep their bytes between two processes") {
  play_with_child("traffic");
}
TEST_CASE("irecv alone is enough between two processes") { play_with_child("exchange"); }
TEST_CASE("isend alone is enough between two processes: the sender sleeps") {
  play_with_child("silence");
}

}  // namespace

// Not a test: what the child processes of the tests above run.
TEST_CASE("other rank", "[.child]") {
  const Role role = own_role();
  Shape shape;
  REQUIRE(hear(role.fd, shape));
  std::string failure;
  {
    Station station(shape, role.fd);
    for (const Play& play : kPlays)
      if (play.name == role.name) failure = play.act(station, role.fd, true);
    if (!failure.empty()) std::fprintf(stderr, "the child: %s\n", failure.c_str());
    // Nothing is closed before the other one is done.
    char done = 0;
    (void)hear(role.fd, done);
  }
  _exit(failure.empty() ? 0 : 1);
}

}  // namespace twinpath::test
