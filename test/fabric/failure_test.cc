// What happens when a peer goes away, with and without a goodbye, and when we do.
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

TEST_CASE("Closing with requests outstanding waits for nobody") {
  World world;
  for (int order = 0; order < 2; ++order) {
    Link link = world.connect();
    Buffer from(*link.send, 1 << 20, 1), to(*link.recv, 1 << 20);
    from.forget();
    to.forget();
    for (int i = 0; i < 4; ++i) {
      Request* receive = start_recv(*link.recv, {to.receive(0)});
      (void)start_send(*link.send, from, from.size(), 0, receive);
    }
    (void)start_recv(*link.recv, {to.receive(0)});
    const std::int64_t begin = now_ns();
    if (order == 0) {
      link.send.reset();
      link.recv.reset();
    } else {
      link.recv.reset();
      link.send.reset();
    }
    CHECK(now_ns() - begin < 5 * kSecond);
  }
  Link again = world.connect();
  Buffer from(*again.send, 100, 1), to(*again.recv, 100);
  Request* receive = start_recv(*again.recv, {to.receive(0)});
  finish(start_send(*again.send, from, 100, 0, receive));
  finish(receive);
}

TEST_CASE("What was received before the peer closed still completes") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 100, 1), to(*link.recv, 100);
  from.forget();
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  finish(start_send(*link.send, from, 100, 0, receive));
  link.send.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  CHECK(finish(receive).bytes[0] == 100);
  CHECK(log.warnings().empty());
}

TEST_CASE("A receive whose sender closed in good order fails a second later and says so") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer to(*link.recv, 100);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Completion c;
  REQUIRE(receive->test(c) == Status::ok);
  Status s = Status::ok;
  const std::int64_t begin = now_ns();
  link.send.reset();
  REQUIRE(eventually([&] { return (s = receive->test(c)) != Status::ok; }));
  CHECK(s == Status::remote);
  CHECK(now_ns() - begin > 900 * kMillisecond);
  CHECK(now_ns() - begin < 3 * kSecond);
  CHECK(log.warnings().size() == 1);
  CHECK(log.has(LogLevel::warn, "closed the connection while 1 request"));
  // Everything after it fails at once, without another message.
  const RecvBuffer b = to.receive(0);
  Request* more = nullptr;
  CHECK(link.recv->irecv({&b, 1}, false, &more) == Status::remote);
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("A sender that waits for a receiver which closed fails, too") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 100, 1);
  link.recv.reset();
  Status s = Status::again;
  Request* r = nullptr;
  REQUIRE(eventually([&] {
    s = link.send->isend(from.data(), 100, 0, from.memory, &r);
    return s != Status::again;
  }));
  CHECK(s == Status::remote);
  CHECK(log.warnings().size() == 1);
}

// Alone in its process: the soft HCA takes its faults when it is first opened.
TEST_CASE("D13: a failed write is reported once with both ends, the status and what to do",
          "[.faults]") {
  LogCapture log;
  Config config = soft_config();
  config.soft_faults = "fail_send=6";
  config.standby_ports = 0;  // or it goes on over the other port
  World world(config);
  Link link = world.connect();
  Buffer from(*link.send, 4096, 1), to(*link.recv, 4096);
  Status s = Status::ok;
  for (int i = 0; i < 20 && s == Status::ok; ++i) {
    const RecvBuffer b = to.receive(0);
    Request *receive = nullptr, *send = nullptr;
    Completion received, sent;
    REQUIRE(eventually([&] {
      if (receive == nullptr) {
        s = link.recv->irecv({&b, 1}, false, &receive);
      } else if (!received.done) {
        s = receive->test(received);
      }
      if (s == Status::ok && send == nullptr) {
        s = link.send->isend(from.data(), from.size(), 0, from.memory, &send);
        if (s == Status::again) s = Status::ok;
      } else if (s == Status::ok && !sent.done) {
        s = send->test(sent);
      }
      return s != Status::ok || (received.done && sent.done);
    }));
  }
  CHECK(s == Status::remote);
  REQUIRE(log.warnings().size() == 1);
  for (const char* part : {"connection to ", " pid ", "127.0.0.1:", "soft", "retry", "vendor error",
                           "GID index", "QP ", "NCCL_IB_TIMEOUT"})
    CHECK(log.has(LogLevel::warn, part));
}

}  // namespace
}  // namespace twinpath::test
