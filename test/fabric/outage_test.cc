// The control network is cut, or answers late: what must live lives, and what is dead is named.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/rdma/handle.h"
#include "proxy/wire/handshake.h"
#include "test/fabric/tap.h"
#include "test/fabric/world.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

namespace twinpath::test {
namespace {

// The shortest limit that can be set.
constexpr int kOutageLimitMs = 4000;

Config patient(int connect_timeout_ms = 20000) {
  Config c = soft_config();
  c.peer_timeout_ms = kOutageLimitMs;
  c.connect_timeout_ms = connect_timeout_ms;
  return c;
}

void exchange(Link& link, Buffer& from, Buffer& to) {
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Request* send = start_send(*link.send, from, from.size(), 0, receive);
  finish(send);
  CHECK(finish(receive).bytes[0] == from.size());
}

TEST_CASE("A cut control network ends no connection: not a busy, a waiting or an idle one",
          "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  LogCapture log;
  World world(patient());
  Link busy = world.connect(), waiting = world.connect(), idle = world.connect();
  Buffer busy_from(*busy.send, 5000, 1), busy_to(*busy.recv, 5000);
  Buffer waiting_from(*waiting.send, 5000, 2), waiting_to(*waiting.recv, 5000);
  Buffer idle_from(*idle.send, 5000, 3), idle_to(*idle.recv, 5000);
  // A receiver waits for a message, and a sender of the other way for a clear-to-send.
  Request* receive = start_recv(*waiting.recv, {waiting_to.receive(0)});
  Link blocked = world.connect();
  Buffer blocked_from(*blocked.send, 100, 4), blocked_to(*blocked.recv, 100);
  Outage outage;
  REQUIRE(outage);
  // Beyond the limit, and the seconds in which a silent host is not even suspected.
  const std::int64_t end = now_ns() + (2 * kOutageLimitMs + 3000) * kMillisecond;
  int exchanges = 0;
  while (now_ns() < end) {
    exchange(busy, busy_from, busy_to);
    ++exchanges;
    Completion c;
    REQUIRE(receive->test(c) == Status::ok);
    REQUIRE_FALSE(c.done);
    Request* send = nullptr;
    const Status sent =
        blocked.send->isend(blocked_from.data(), 100, 0, blocked_from.memory, &send);
    CAPTURE(log.warnings());
    REQUIRE(sent == Status::again);
  }
  CHECK(exchanges > 10);
  CHECK(log.warnings().empty());
  // With the network still away, and when it is back.
  for (int i = 0; i < 2; ++i) {
    exchange(idle, idle_from, idle_to);
    outage.end();
  }
  finish(start_send(*waiting.send, waiting_from, waiting_from.size(), 0, receive));
  CHECK(finish(receive).bytes[0] == waiting_from.size());
  exchange(blocked, blocked_from, blocked_to);
  CHECK(log.warnings().empty());
}

TEST_CASE("Lost SYNs are waited for as long as a connection may take", "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  Config config = patient(6500);
  World world(config);
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  LogCapture log;
  // Only the listener's socket is there.
  Outage outage;
  REQUIRE(outage);
  const std::int64_t begin = now_ns();
  std::unique_ptr<SendComm> comm;
  HandleArray mine = handle;
  Status s = Status::again;
  REQUIRE(eventually(
      [&] {
        s = world.a->connect(0, mine, comm);
        return s != Status::again;
      },
      30000));
  CHECK(s == Status::remote);
  CHECK(now_ns() - begin >= 6500 * kMillisecond);
  REQUIRE(log.warnings().size() == 1);
  for (const char* part : {"timed out after 6500 ms", "the TCP connection", "from lo (127.0.0.1:",
                           "NCCL_SOCKET_IFNAME", "TWINPATH_CONNECT_TIMEOUT_MS"})
    CHECK(log.has(LogLevel::warn, part));
  outage.end();
  Link link;
  world.connect_to(0, *listener, handle, link);
}

TEST_CASE("The acceptor waits for a peer as long as the option says, and says how long") {
  Config config = patient(700);
  World world(config);
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  LogCapture log;
  Handle h;
  std::string why;
  REQUIRE(decode_handle(handle, h, why));
  auto socket = TcpSocket::connect(h.address);
  REQUIRE(socket);
  REQUIRE(eventually([&] { return socket->finish_connect(why) == Status::ok; }));
  // A hello whose body never comes.
  const auto frame = make_frame(FrameType::hello, h.nonce, std::vector<std::uint8_t>(100));
  std::size_t sent = 0;
  REQUIRE(socket->send_part(std::span(frame).first(kFrameHeaderBytes), sent) == Status::ok);
  Status s = Status::again;
  REQUIRE(eventually([&] {
    std::unique_ptr<RecvComm> comm;
    s = listener->accept(comm);
    return s != Status::again;
  }));
  CHECK(s == Status::remote);
  CHECK(log.has(LogLevel::warn, "timed out after 700 ms while waiting for the peer's hello"));
}

TEST_CASE("A peer whose host falls silent while a connection is made is given up after the limit",
          "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  World world(patient(2500));
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  std::unique_ptr<SendComm> comm;
  // Its hello is sent; nobody accepts.
  for (int i = 0; i < 50; ++i) {
    REQUIRE(world.a->connect(0, handle, comm) == Status::again);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  LogCapture log;
  Outage outage;
  REQUIRE(outage);
  const std::int64_t begin = now_ns();
  Status s = Status::again;
  REQUIRE(eventually(
      [&] {
        s = world.a->connect(0, handle, comm);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return s != Status::again;
      },
      30000));
  CHECK(s == Status::remote);
  CHECK(now_ns() - begin >= 2500 * kMillisecond);
  CHECK(log.has(LogLevel::warn, "its host does not answer on the control connection, here lo ("));
}

// Descriptors that fill the process's table.
struct Full {
  Full() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit few = before;
    few.rlim_cur = 200;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) fds.emplace_back(fd);
  }
  ~Full() { (void)setrlimit(RLIMIT_NOFILE, &before); }
  Full(const Full&) = delete;
  Full& operator=(const Full&) = delete;
  rlimit before{};
  std::vector<UniqueFd> fds;
};

TEST_CASE("An acceptor without descriptors says so to both ends, at once") {
  World world(patient());
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  HandleArray mine = handle;
  std::unique_ptr<SendComm> send;
  REQUIRE(world.a->connect(0, mine, send) == Status::again);  // its socket is there
  {
    LogCapture log;
    Full full;
    std::unique_ptr<RecvComm> recv;
    Status connected = Status::again, accepted = Status::again;
    // Half of the time that a connection may take.
    REQUIRE(eventually(
        [&] {
          if (connected == Status::again) connected = world.a->connect(0, mine, send);
          if (accepted == Status::again) accepted = listener->accept(recv);
          return connected != Status::again && accepted != Status::again;
        },
        10000));
    CHECK(connected == Status::remote);
    CHECK(accepted == Status::system);
    CHECK(log.has(LogLevel::warn, "refused the connection"));
    CHECK(log.has(LogLevel::warn, "no descriptor left"));
    CHECK(log.has(LogLevel::warn, "ulimit -n"));
  }
  Link link;
  world.connect_to(0, *listener, handle, link);
}

TEST_CASE("Connections that were begun and forgotten go while others are gone on with", "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  Config config = patient(4000);
  World world(config);
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  const std::size_t before = tcp_sockets().size();
  HandleArray slow = handle;
  std::unique_ptr<SendComm> send;
  REQUIRE(world.a->connect(0, slow, send) == Status::again);
  for (int i = 0; i < 300; ++i) {
    HandleArray copy = handle;
    REQUIRE(world.a->connect(0, copy, send) == Status::again);
  }
  CHECK(tcp_sockets().size() >= before + 301);
  HandleArray other{};
  {
    std::unique_ptr<Listener> next;
    // This process was away: nobody is forgotten for that.
    std::this_thread::sleep_for(std::chrono::milliseconds(4100));
    REQUIRE(world.a->listen(0, other, next) == Status::ok);
    CHECK(tcp_sockets().size() >= before + 301);
    HandleArray kept = handle;
    const std::int64_t end = now_ns() + 4500 * kMillisecond;
    while (now_ns() < end) {
      REQUIRE(world.a->connect(0, kept, send) == Status::again);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    CHECK(tcp_sockets().size() == before + 2);  // the next listener's, and the kept one
  }
  // Whoever comes back too late is told the truth.
  LogCapture log;
  CHECK(world.a->connect(0, slow, send) == Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "TWINPATH_CONNECT_TIMEOUT_MS"));
}

TEST_CASE("A send that fails after its receiver closed in good order says that the peer closed") {
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Buffer from(*link.send, 5000, 1), to(*link.recv, 5000);
  to.forget();
  LogCapture log;
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Request* send = start_send(*link.send, from, from.size(), 0, receive);
  link.recv.reset();
  Tap::fail_completion = WrKind::send_data;
  Completion c;
  REQUIRE(eventually([&] { return send->test(c) == Status::remote; }));
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "the peer closed the connection before all"));
  Tap::fail_completion = WrKind::none;
}

TEST_CASE("A queue pair beyond the control group's limit names that limit") {
  World world(soft_config(), -1, Tap::on);
  LogCapture log;
  Tap::create_error = EAGAIN;
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;
  REQUIRE(eventually([&] {
    (void)world.a->connect(0, handle, send);
    return listener->accept(recv) == Status::system;
  }));
  Tap::create_error = 0;
  CHECK(log.has(LogLevel::warn, "Resource temporarily unavailable"));
  CHECK(log.has(LogLevel::warn, "rdma.max"));
}

}  // namespace
}  // namespace twinpath::test
