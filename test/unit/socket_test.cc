// The control socket over loopback: states, ends and errors.
#include "plugin/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>

#include <poll.h>
#include <sys/resource.h>
#include <array>
#include <cstring>

#include <functional>
#include <numeric>

#include "plugin/base/clock.h"
#include "plugin/base/owned.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

namespace twinpath {
namespace {

Interface loopback() {
  Interface i;
  i.name = "lo";
  i.address.in4.sin_family = AF_INET;
  i.address.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return i;
}

// Calls until the answer is not `wait`, at most 5 seconds.
Status until_not(Status wait, const std::function<Status()>& call) {
  const std::int64_t deadline = now_ns() + 5 * kSecond;
  for (;;) {
    const Status s = call();
    if (s != wait || now_ns() > deadline) return s;
    (void)poll(nullptr, 0, 1);
  }
}

bool becomes(const TcpSocket& socket, PeerSign sign) {
  return until_not(Status::again, [&] {
           return socket.look() == sign ? Status::ok : Status::again;
         }) == Status::ok;
}

struct Pair {
  TcpSocket client, server;
};

Pair connected() {
  auto listener = TcpListener::open(loopback());
  REQUIRE(listener);
  Pair p;
  auto client = TcpSocket::connect(listener->address());
  REQUIRE(client);
  p.client = std::move(client).take();
  std::string why;
  REQUIRE(until_not(Status::again, [&] { return p.client.finish_connect(why); }) == Status::ok);
  REQUIRE(until_not(Status::again, [&]() -> Status {
            auto accepted = listener->accept();
            if (!accepted) return accepted.status();
            p.server = std::move(accepted).take();
            return Status::ok;
          }) == Status::ok);
  return p;
}

int socket_option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  REQUIRE(getsockopt(fd, level, name, &value, &length) == 0);
  return value;
}

}  // namespace

TEST_CASE("addresses print as host:port") {
  SocketAddress a;
  CHECK(a.text() == "(no address)");
  a.in4.sin_family = AF_INET;
  a.in4.sin_port = htons(1234);
  a.in4.sin_addr.s_addr = htonl(0x0a000001);
  CHECK(a.text() == "10.0.0.1:1234");
  SocketAddress b;
  b.in6.sin6_family = AF_INET6;
  b.in6.sin6_port = htons(80);
  REQUIRE(inet_pton(AF_INET6, "fe80::1", &b.in6.sin6_addr) == 1);
  CHECK(b.text() == "[fe80::1]:80");
  b.in6.sin6_scope_id = 1;  // loopback is always the first
  CHECK(b.text() == "[fe80::1%lo]:80");
}

TEST_CASE("a listener without a caller says again, and has an address to announce") {
  auto listener = TcpListener::open(loopback());
  REQUIRE(listener);
  CHECK(ntohs(listener->address().in4.sin_port) != 0);
  CHECK(listener->accept().status() == Status::again);
}

TEST_CASE("listening on an address of another host is reported with interface and remedy") {
  Interface i = loopback();
  i.address.in4.sin_addr.s_addr = htonl(0xcb007101);  // 203.0.113.1, documentation
  test::LogCapture log;
  CHECK(TcpListener::open(i).status() == Status::system);
  CHECK(log.has(LogLevel::warn, "cannot listen on interface lo, 203.0.113.1:0: bind"));
  CHECK(log.has(LogLevel::warn, "NCCL_SOCKET_IFNAME"));
}

TEST_CASE("two ends exchange bytes and know each other's address") {
  Pair p = connected();
  SocketAddress local;
  socklen_t length = sizeof(sockaddr_in6);
  REQUIRE(getsockname(p.client.fd(), &local.sa, &length) == 0);
  CHECK(p.server.peer().text() == local.text());

  const std::vector<std::uint8_t> out{1, 2, 3, 4, 5};
  std::vector<std::uint8_t> in(5);
  std::size_t sent = 0, received = 0;
  CHECK(p.server.recv_part(in, received) == Status::again);
  CHECK(p.client.send_part(out, sent) == Status::ok);
  CHECK(until_not(Status::again, [&] { return p.server.recv_part(in, received); }) == Status::ok);
  CHECK(in == out);
  CHECK(p.server.look() == PeerSign::quiet);
}

TEST_CASE("a message larger than the buffers goes in parts and arrives whole") {
  Pair p = connected();
  std::vector<std::uint8_t> out(32u << 20), in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(i * 31 >> 3);
  std::size_t sent = 0, received = 0;
  CHECK(p.client.send_part(out, sent) == Status::again);
  CHECK(sent > 0);
  CHECK(sent < out.size());
  const Status last = until_not(Status::again, [&] {
    const Status s = p.client.send_part(out, sent);
    if (s != Status::ok && s != Status::again) return s;
    return p.server.recv_part(in, received);
  });
  CHECK(last == Status::ok);
  CHECK(sent == out.size());
  CHECK(in == out);
}

TEST_CASE("a connect that nobody listens for is refused, with the system's text") {
  SocketAddress nobody;
  {
    auto listener = TcpListener::open(loopback());
    REQUIRE(listener);
    nobody = listener->address();
  }
  auto socket = TcpSocket::connect(nobody);
  REQUIRE(socket);
  std::string why;
  CHECK(until_not(Status::again, [&] { return socket->finish_connect(why); }) == Status::remote);
  CHECK(why == "Connection refused");
  why.clear();
  CHECK(socket->finish_connect(why) == Status::remote);  // asked again: the same answer
  CHECK(why == "Connection refused");
}

TEST_CASE("a socket that met itself counts as refused") {
  UnsharedFd fd = UnsharedFd::make([] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  SocketAddress self = loopback().address;
  REQUIRE(bind(fd.get(), &self.sa, self.length()) == 0);
  socklen_t length = sizeof(sockaddr_in6);
  REQUIRE(getsockname(fd.get(), &self.sa, &length) == 0);
  REQUIRE(connect(fd.get(), &self.sa, self.length()) == 0);  // TCP allows it
  TcpSocket socket(std::move(fd), self);
  std::string why;
  CHECK(socket.finish_connect(why) == Status::remote);
}

TEST_CASE("an address without a family cannot be connected to") {
  CHECK(TcpSocket::connect(SocketAddress{}).status() == Status::bad_argument);
}

TEST_CASE("look tells silence, waiting data and the end apart and reads nothing") {
  Pair p = connected();
  CHECK(p.server.look() == PeerSign::quiet);
  const std::vector<std::uint8_t> byte{42};
  std::size_t sent = 0, received = 0;
  REQUIRE(p.client.send_part(byte, sent) == Status::ok);
  CHECK(becomes(p.server, PeerSign::talking));
  p.client.close();
  CHECK(p.server.look() == PeerSign::talking);  // the byte still comes first
  std::vector<std::uint8_t> in(1);
  CHECK(p.server.recv_part(in, received) == Status::ok);
  CHECK(in == byte);
  CHECK(becomes(p.server, PeerSign::ended));
  received = 0;
  CHECK(p.server.recv_part(in, received) == Status::closed);
}

TEST_CASE("a reset of the peer is an error of the remote end") {
  Pair p = connected();
  const linger hard{1, 0};  // close sends a reset
  REQUIRE(setsockopt(p.client.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  p.client.close();
  CHECK(becomes(p.server, PeerSign::reset));
}

TEST_CASE("sending to a peer that closed is an error and raises no signal") {
  Pair p = connected();
  p.client.close();
  const std::vector<std::uint8_t> byte{1};
  const Status s = until_not(Status::ok, [&] {
    std::size_t sent = 0;
    return p.server.send_part(byte, sent);
  });
  CHECK((s == Status::closed || s == Status::remote));
}

TEST_CASE("control options ask an idle host seldom, and give up by no clock of theirs") {
  Pair p = connected();
  p.client.set_control_options();
  const int fd = p.client.fd();
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_NODELAY) != 0);
  CHECK(socket_option(fd, SOL_SOCKET, SO_KEEPALIVE) != 0);
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 1);
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL) == 30);
  // Far beyond what TWINPATH_PEER_TIMEOUT_MS can be.
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) >= 20 * 3600 * 1000);
}

// Segments that this end has sent: tcpi_segs_out of Linux 4.2 (uapi/linux/tcp.h), which glibc's own
// struct does not have.
std::uint32_t segments_out(const TcpSocket& socket) {
  constexpr std::size_t kSegmentsOut = 136;
  std::array<std::uint8_t, 256> info{};
  socklen_t length = info.size();
  REQUIRE(getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, info.data(), &length) == 0);
  REQUIRE(length >= kSegmentsOut + sizeof(std::uint32_t));
  std::uint32_t count = 0;
  std::memcpy(&count, &info[kSegmentsOut], sizeof count);
  return count;
}

TEST_CASE("an idle host is asked once, then for half a minute only when somebody waits") {
  Pair p = connected();
  p.client.set_control_options();
  const auto rest = [](int ms) { (void)poll(nullptr, 0, ms); };
  rest(1500);  // the first question of an idle connection is a second after the last word
  const std::uint32_t before = segments_out(p.client);
  rest(2500);
  CHECK(segments_out(p.client) == before);
  // However often it is said, once a second at most.
  const std::int64_t end = now_ns() + 2300 * kMillisecond;
  std::int64_t owed = 0;
  while (now_ns() < end) {
    p.client.ask(now_ns(), kSecond);
    rest(20);
    owed = std::max(owed, p.client.owed_ms(now_ns()));
  }
  CHECK(segments_out(p.client) >= before + 1);
  CHECK(segments_out(p.client) <= before + 4);
  CHECK(owed < 1000);  // it answers
  CHECK(p.client.silence_ms() < 2500);
}

TEST_CASE("the first end of a socket is kept, whoever asks how often") {
  Pair p = connected();
  const linger hard{1, 0};  // close sends a reset
  REQUIRE(setsockopt(p.client.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  p.client.close();
  // The kernel tells it to one call; here that is not the one that looks.
  std::vector<std::uint8_t> in(1);
  std::size_t received = 0;
  CHECK(until_not(Status::again, [&] { return p.server.recv_part(in, received); }) ==
        Status::remote);
  CHECK(p.server.recv_part(in, received) == Status::closed);
  for (int i = 0; i < 3; ++i) CHECK(p.server.look() == PeerSign::reset);
  CHECK(p.server.end_text() == "Connection reset by peer");
  const TcpSocket moved = std::move(p.server);
  CHECK(moved.look() == PeerSign::reset);
}

TEST_CASE("a cut network is silence, not an end, and silence ends with it") {
  Pair p = connected();
  p.client.set_control_options();
  p.server.set_control_options();
  {
    test::Outage outage;
    REQUIRE(outage);
    // Longer than any number of lost probes once took (four seconds).
    const std::int64_t end = now_ns() + 5500 * kMillisecond;
    while (now_ns() < end) {
      REQUIRE(p.client.look() == PeerSign::quiet);
      p.client.ask(now_ns(), kSecond);
      (void)poll(nullptr, 0, 50);
    }
    CHECK(p.client.silence_ms() >= 5000);
    // Asked from when it had been silent for a second.
    CHECK(p.client.owed_ms(now_ns()) >= 4000);
  }
  p.client.ask(now_ns() + kSecond, kSecond);
  CHECK(until_not(Status::again, [&] {
          return p.client.silence_ms() < 2000 ? Status::ok : Status::again;
        }) == Status::ok);
  const std::vector<std::uint8_t> byte{42};
  std::size_t sent = 0;
  CHECK(p.client.send_part(byte, sent) == Status::ok);
  CHECK(becomes(p.server, PeerSign::talking));
}

TEST_CASE("this end's interface is named") {
  Pair p = connected();
  CHECK(p.client.local_text().starts_with("lo (127.0.0.1:"));
}

TEST_CASE("a host that is not reached is tried until the caller's time is over") {
  SocketAddress nowhere = loopback().address;
  nowhere.in4.sin_addr.s_addr = htonl(0xe0000001);  // 224.0.0.1: TCP goes to no group of hosts
  nowhere.in4.sin_port = htons(1);
  auto socket = TcpSocket::connect(nowhere);
  REQUIRE(socket);
  std::string why;
  CHECK(until_not(Status::again, [&] { return socket->finish_connect(why); }) == Status::remote);
  CHECK(why == "Network is unreachable");
  socket = TcpSocket::connect(nowhere);
  REQUIRE(socket);
  why.clear();
  const std::int64_t end = now_ns() + 1200 * kMillisecond;
  Status s = Status::again;
  while ((s = socket->finish_connect(why, end)) == Status::again) {
    REQUIRE(now_ns() < end + 5 * kSecond);
    CHECK(why == "Network is unreachable");
    (void)poll(nullptr, 0, 10);
  }
  CHECK(s == Status::remote);
  CHECK(now_ns() >= end);
}

namespace {

// No descriptor can be opened while it lives.
struct Exhausted {
  Exhausted() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(next);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next.get());
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~Exhausted() { (void)setrlimit(RLIMIT_NOFILE, &before); }
  Exhausted(const Exhausted&) = delete;
  Exhausted& operator=(const Exhausted&) = delete;
  rlimit before{};
};

}  // namespace

TEST_CASE("without a descriptor left only a caller that waits is worth a word") {
  auto listener = TcpListener::open(loopback());
  REQUIRE(listener);
  std::string why;
  TcpSocket caller;
  {
    Exhausted none;
    test::LogCapture log;
    CHECK(listener->accept().status() == Status::again);
    CHECK(log.warnings().empty());
  }
  auto made = TcpSocket::connect(listener->address());
  REQUIRE(made);
  caller = std::move(made).take();
  REQUIRE(until_not(Status::again, [&] { return caller.finish_connect(why); }) == Status::ok);
  SpareFd spare;
  {
    Exhausted none;
    test::LogCapture log;
    CHECK(until_not(Status::again, [&] { return listener->accept().status(); }) ==
          Status::no_memory);
    CHECK(log.has(LogLevel::warn, "raise the limit of open files (ulimit -n)"));
    CHECK(spare.lend());
    CHECK_FALSE(spare.lend());
    CHECK(listener->accept());
    spare.restore();
    CHECK(spare.lend());
  }
}

TEST_CASE("interfaces that cannot be read for want of descriptors are not missing ones") {
  Config config;
  config.socket_ifname = "lo";
  REQUIRE(control_interface(config));
  Exhausted none;
  test::LogCapture log;
  CHECK(control_interface(config).status() == Status::system);
  CHECK(log.has(LogLevel::warn, "interfaces cannot be read: Too many open files"));
  CHECK(log.has(LogLevel::warn, "ulimit -n"));
  CHECK_FALSE(log.has("no network interface"));
}

}  // namespace twinpath
