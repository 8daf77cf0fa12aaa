// Handles, strangers, stalled peers and limits of the handshake.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "plugin/rdma/handle.h"
#include "proxy/connect/stranger_log.h"
#include "proxy/listener.h"
#include "proxy/wire/handshake.h"
#include "test/fabric/world.h"
#include "test/support/stand_still.h"

namespace twinpath::test {
namespace {

// A plain TCP client of a listener: what somebody else on the network can do.
struct Stranger {
  TcpSocket socket;
  explicit Stranger(const HandleArray& handle) {
    Handle h;
    std::string why;
    REQUIRE(decode_handle(handle, h, why));
    auto s = TcpSocket::connect(h.address);
    REQUIRE(s);
    socket = std::move(s).take();
    REQUIRE(eventually([&] { return socket.finish_connect(why) == Status::ok; }));
  }
  void say(std::span<const std::uint8_t> bytes) {
    std::size_t sent = 0;
    REQUIRE(eventually([&] { return socket.send_part(bytes, sent) == Status::ok; }));
  }
};

struct Listening {
  World world;
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  explicit Listening(const Config& config = soft_config()) : world(config) {
    REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  }
  // Accepts for a while and expects nobody.
  void expect_nobody(int ms = 50) {
    const std::int64_t end = now_ns() + ms * kMillisecond;
    std::unique_ptr<RecvComm> comm;
    while (now_ns() < end) REQUIRE(listener->accept(comm) == Status::again);
  }
};

TEST_CASE("A listener serves one peer after another and comms outlive it") {
  Listening l;
  Link one, two;
  l.world.connect_to(0, *l.listener, l.handle, one);
  l.world.connect_to(0, *l.listener, l.handle, two);
  l.listener.reset();
  exchange(two);
  exchange(one);
}

TEST_CASE("Comms work after their session and the transport are gone") {
  World world;
  Link link = world.connect();
  world.a.reset();
  world.b.reset();
  world.transport.reset();
  exchange(link);
}

TEST_CASE("A device connects to itself within one session") {
  World world;
  world.a = nullptr;
  world.a = world.open(3, -1);
  Link link = world.connect(0, 0);
  exchange(link);
}

TEST_CASE("A truncated, foreign or empty handle is refused with a message") {
  Listening l;
  std::unique_ptr<SendComm> comm;
  LogCapture log;
  HandleArray cut = l.handle;
  std::fill(cut.begin() + 40, cut.end(), std::uint8_t{0});
  CHECK(l.world.a->connect(0, cut, comm) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "truncated"));
  HandleArray foreign{};
  CHECK(l.world.a->connect(0, foreign, comm) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "not a handle of this plugin"));
  HandleArray scribbled = l.handle;
  scribbled[118] = 1;
  CHECK(l.world.a->connect(0, scribbled, comm) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "own copy of the handle"));
  CHECK(comm == nullptr);
}

TEST_CASE("A device that does not exist is refused") {
  World world;
  LogCapture log;
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  CHECK(world.b->listen(9, handle, listener) == Status::bad_argument);
  CHECK(world.b->listen(-1, handle, listener) == Status::bad_argument);
  CHECK(world.transport->device(2).status() == Status::bad_argument);
}

TEST_CASE("A stranger's bytes cost one warning and nobody's connection") {
  Listening l;
  LogCapture log;
  Stranger http(l.handle);
  const char text[] = "GET / HTTP/1.1\r\nHost: somebody.example\r\n\r\n";
  http.say({reinterpret_cast<const std::uint8_t*>(text), sizeof text});
  REQUIRE(eventually([&] {
    std::unique_ptr<RecvComm> comm;
    REQUIRE(l.listener->accept(comm) == Status::again);
    return !log.warnings().empty();
  }));
  l.expect_nobody(20);
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "127.0.0.1:"));
  Link link;
  l.world.connect_to(0, *l.listener, l.handle, link);
  exchange(link);
}

TEST_CASE("A frame with the wrong nonce is a stranger's") {
  Listening l;
  LogCapture log;
  Stranger stale(l.handle);
  stale.say(make_frame(FrameType::hello, random_nonce(), {}));
  REQUIRE(eventually([&] {
    std::unique_ptr<RecvComm> comm;
    REQUIRE(l.listener->accept(comm) == Status::again);
    return !log.warnings().empty();
  }));
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("Strangers that say nothing or go away do not hold up a peer") {
  Listening l;
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<Stranger>(l.handle));
  silent[0]->say(std::array<std::uint8_t, 3>{1, 2, 3});
  silent[1].reset();
  Link link;
  l.world.connect_to(0, *l.listener, l.handle, link);
  exchange(link);
}

TEST_CASE("However many strangers are silent, a peer connects and the log has one line") {
  Listening l;
  LogCapture log;
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Stranger>(l.handle));
  const std::int64_t begin = now_ns();
  Link link;
  l.world.connect_to(0, *l.listener, l.handle, link);
  exchange(link);
  // They are in the queue before the peer, and each may be heard: but not until its time is up.
  CHECK(now_ns() - begin < 10 * kSecond);
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "once a minute"));
  // As many again that say something wrong: not one line more.
  silent.clear();
  for (int i = 0; i < 50; ++i) {
    Stranger odd(l.handle);
    odd.say(make_frame(FrameType::hello, random_nonce(), {}));
    l.expect_nobody(1);
  }
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("Who was let in before a stop is heard after it, however many wait") {
  Listening l;
  LogCapture log;
  std::vector<std::unique_ptr<Stranger>> callers;
  const auto call = [&] { callers.push_back(std::make_unique<Stranger>(l.handle)); };
  for (std::size_t i = 0; i < kMaxHandshakes; ++i) call();
  std::unique_ptr<RecvComm> comm;
  REQUIRE(l.listener->accept(comm) == Status::again);
  call();  // and finds no room
  stand_still(300);
  CHECK(l.listener->accept(comm) == Status::again);
  CHECK(log.warnings().empty());
  // They still say nothing.
  REQUIRE(eventually([&] {
    REQUIRE(l.listener->accept(comm) == Status::again);
    return log.has(LogLevel::warn, "said nothing while others wait");
  }));
}

TEST_CASE("Strangers are told of at once, and then in one line a minute") {
  LogCapture log;
  StrangerLog strangers;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < 1000; ++i) strangers.tell("10.0.0.9:1 said nothing", begin + i);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "10.0.0.9:1 said nothing"));
  strangers.tell("10.0.0.8:2 said nothing", begin + 61 * kSecond);
  REQUIRE(log.warnings().size() == 2);
  CHECK(log.has(LogLevel::warn, "999 connections"));
  CHECK(log.has(LogLevel::warn, "10.0.0.8:2 said nothing"));
}

TEST_CASE("Two protocol versions tell each other why they part") {
  Listening l;
  LogCapture log;
  Stranger newer(l.handle);
  Handle h;
  std::string why;
  REQUIRE(decode_handle(l.handle, h, why));
  auto frame = make_frame(FrameType::hello, h.nonce, std::array<std::uint8_t, 5>{1, 2, 3, 4, 5});
  frame[4] = 77;
  newer.say(frame);
  Status s = Status::again;
  REQUIRE(eventually([&] {
    std::unique_ptr<RecvComm> comm;
    s = l.listener->accept(comm);
    return s != Status::again;
  }));
  CHECK(s == Status::unsupported);
  CHECK(log.has(LogLevel::warn, "protocol " + std::to_string(kProtocolVersion)));
  CHECK(log.has(LogLevel::warn, "77"));
  // And the other side reads the same text.
  std::vector<std::uint8_t> answer(kFrameHeaderBytes);
  std::size_t got = 0;
  REQUIRE(eventually([&] { return newer.socket.recv_part(answer, got) == Status::ok; }));
  const FrameHeader header =
      decode_header(std::span<const std::uint8_t, kFrameHeaderBytes>(answer.data(), answer.size()));
  CHECK(header.type == FrameType::refuse);
  std::vector<std::uint8_t> body(header.body_bytes);
  got = 0;
  REQUIRE(eventually([&] { return newer.socket.recv_part(body, got) == Status::ok; }));
  CHECK(decode_refusal(body).find("77") != std::string::npos);
}

TEST_CASE("A hello that makes no sense is refused with its reason") {
  Listening l;
  LogCapture log;
  Stranger odd(l.handle);
  Handle h;
  std::string why;
  REQUIRE(decode_handle(l.handle, h, why));
  odd.say(make_frame(FrameType::hello, h.nonce, std::array<std::uint8_t, 4>{0, 0, 0, 0}));
  Status s = Status::again;
  REQUIRE(eventually([&] {
    std::unique_ptr<RecvComm> comm;
    s = l.listener->accept(comm);
    return s != Status::again;
  }));
  CHECK(s == Status::remote);
  CHECK(log.has(LogLevel::warn, "hello is cut short"));
}

TEST_CASE("A listener that does not come to its accept is waited for, and named once in a while") {
  Config config = soft_config();
  config.connect_timeout_ms = 600;
  Listening l(config);
  std::array<Link, 2> links;
  std::array<HandleArray, 2> handles = {l.handle, l.handle};
  // Both go on all the time: who is not gone on with for as long as the limit is forgotten.
  const auto connect = [&](Status expected) {
    for (std::size_t i = 0; i < links.size(); ++i)
      if (!links[i].send) {
        const Status s = l.world.a->connect(0, handles[i], links[i].send);
        REQUIRE((s == Status::again || s == expected));
      }
  };
  LogCapture log;
  const std::int64_t begin = now_ns();
  // Twice as long as once was the end of it; two wait.
  while (now_ns() - begin < 1250 * kMillisecond) connect(Status::again);
  REQUIRE(eventually([&] {
    connect(Status::again);
    return !log.warnings().empty();
  }));
  // After 600 and 1200 ms at most, for both; a slow machine may be here for longer.
  const auto limits = static_cast<std::uint64_t>((now_ns() - begin) / (600 * kMillisecond));
  CHECK(log.warnings().size() <= static_cast<std::size_t>(std::bit_width(limits)));
  CHECK(log.has(LogLevel::warn, "still connecting from soft0"));
  CHECK(log.has(LogLevel::warn, "127.0.0.1:"));
  CHECK(log.has(LogLevel::warn, "waiting for the peer's hello"));
  // Then it comes.
  REQUIRE(eventually([&] {
    connect(Status::ok);
    for (Link& link : links)
      if (!link.recv) {
        const Status s = l.listener->accept(link.recv);
        REQUIRE((s == Status::again || s == Status::ok));
        break;
      }
    return links[0].send && links[1].send && links[0].recv && links[1].recv;
  }));
}

TEST_CASE("Connecting to a listener that is gone ends at once") {
  Listening l;
  LogCapture log;
  HandleArray handle = l.handle;
  std::unique_ptr<SendComm> comm;
  Status s = Status::again;
  l.listener.reset();
  REQUIRE(eventually([&] {
    s = l.world.a->connect(0, handle, comm);
    return s != Status::again;
  }));
  CHECK(s == Status::remote);
  CHECK(comm == nullptr);
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("D14: a connection given up at any step leaves nothing behind") {
  // The sanitizers watch; here it is enough that the next connection works.
  Listening l;
  LogCapture log;
  for (int steps = 1; steps < 12; ++steps) {
    auto session = l.world.open(static_cast<std::uint64_t>(steps), -1);
    HandleArray handle = l.handle;
    std::unique_ptr<SendComm> comm;
    std::unique_ptr<RecvComm> peer;
    for (int i = 0; i < steps && !comm; ++i) {
      const Status s = session->connect(0, handle, comm);
      REQUIRE((s == Status::ok || s == Status::again));
      (void)l.listener->accept(peer);
    }
    comm.reset();
    session.reset();
    // The listener finds out and reports the peer that failed; strangers are not reported.
    for (int i = 0; i < 10; ++i) (void)l.listener->accept(peer);
  }
  Link link;
  l.world.connect_to(0, *l.listener, l.handle, link);
  exchange(link);
}

TEST_CASE("Many peers connect at the same time") {
  Listening l;
  constexpr std::size_t kPeers = 40;  // more than may be in the handshake at once
  std::vector<HandleArray> handles(kPeers, l.handle);
  std::vector<std::unique_ptr<SendComm>> sends(kPeers);
  std::vector<std::unique_ptr<RecvComm>> receives;
  REQUIRE(eventually([&] {
    std::size_t done = 0;
    for (std::size_t i = 0; i < kPeers; ++i) {
      if (!sends[i]) REQUIRE_FALSE(l.world.a->connect(0, handles[i], sends[i]) == Status::remote);
      if (sends[i]) ++done;
    }
    std::unique_ptr<RecvComm> comm;
    if (l.listener->accept(comm) == Status::ok) receives.push_back(std::move(comm));
    return done == kPeers && receives.size() == kPeers;
  }));
}

}  // namespace
}  // namespace twinpath::test
