// The control socket over loopback: states, ends and errors.
#include "plugin/base/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <functional>
#include <numeric>

#include "plugin/base/clock.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

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
  CHECK(p.server.peek() == Status::ok);
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

TEST_CASE("peek tells silence, waiting data and the end apart and reads nothing") {
  Pair p = connected();
  CHECK(p.server.peek() == Status::ok);
  const std::vector<std::uint8_t> byte{42};
  std::size_t sent = 0, received = 0;
  REQUIRE(p.client.send_part(byte, sent) == Status::ok);
  CHECK(until_not(Status::ok, [&] { return p.server.peek(); }) == Status::again);
  p.client.close();
  CHECK(p.server.peek() == Status::again);  // the byte still comes first
  std::vector<std::uint8_t> in(1);
  CHECK(p.server.recv_part(in, received) == Status::ok);
  CHECK(in == byte);
  CHECK(until_not(Status::ok, [&] { return p.server.peek(); }) == Status::closed);
  received = 0;
  CHECK(p.server.recv_part(in, received) == Status::closed);
}

TEST_CASE("a reset of the peer is an error of the remote end") {
  Pair p = connected();
  const linger hard{1, 0};  // close sends a reset
  REQUIRE(setsockopt(p.client.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
  p.client.close();
  CHECK(until_not(Status::ok, [&] { return p.server.peek(); }) == Status::remote);
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

TEST_CASE("control options are set so that a vanished peer shows within 5 seconds") {
  Pair p = connected();
  p.client.set_control_options();
  const int fd = p.client.fd();
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_NODELAY) != 0);
  CHECK(socket_option(fd, SOL_SOCKET, SO_KEEPALIVE) != 0);
  const int seconds =
      socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
      socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT);
  CHECK(seconds <= 5);
  CHECK(socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) <= 5000);
}

}  // namespace twinpath
