// What happens when a peer goes away, with and without a goodbye, and when we do.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "test/fabric/lone_sender.h"
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

// A second process over the same fabric: connects to `handle` as a sender, sends `messages` and
// then waits to be killed.
// In a program of its own, because a process that uses an adapter must not fork and go on.
[[noreturn]] void be_sender(HandleArray handle, int messages, int ready) {
  const LoneSender sender = connect_or_exit(soft_config(), handle);
  SendComm* const comm = sender.comm.get();
  std::vector<std::uint8_t> bytes(4096);
  Buffer::pattern(5).fill(bytes.data(), bytes.size());
  auto memory = comm->register_memory(bytes.data(), bytes.size(), MemoryType::host, 0, -1);
  if (!memory) _exit(4);
  for (int i = 0; i < messages; ++i) {
    Request* r = nullptr;
    while (r == nullptr) {
      const Status s = comm->isend(bytes.data(), bytes.size(), 0, *memory, &r);
      if (s != Status::ok && s != Status::again) _exit(5);
    }
    Completion c;
    while (!c.done)
      if (r->test(c) != Status::ok) _exit(6);
  }
  const char one = 1;
  if (::write(ready, &one, 1) != 1) _exit(7);
  for (;;) ::pause();
}

TEST_CASE("(the other process of the test below)", "[.peer]") {
  const char* fds = std::getenv("FABRIC_TEST_FDS");
  if (fds == nullptr) return;
  int in = -1, out = -1;
  REQUIRE(std::sscanf(fds, "%d,%d", &in, &out) == 2);
  HandleArray handle;
  if (::read(in, handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) _exit(1);
  be_sender(handle, 10, out);
}

TEST_CASE("A peer process that is killed is noticed well within five seconds") {
  int to_child[2], from_child[2];
  REQUIRE(::pipe(to_child) == 0);
  REQUIRE(::pipe(from_child) == 0);
  const std::string fds = std::to_string(to_child[0]) + "," + std::to_string(from_child[1]);
  ::setenv("FABRIC_TEST_FDS", fds.c_str(), 1);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::execl("/proc/self/exe", "fabric", "[.peer]", static_cast<char*>(nullptr));
    _exit(9);
  }
  ::unsetenv("FABRIC_TEST_FDS");
  LogCapture log;
  Config config = soft_config();
  World world(config);
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
  REQUIRE(::write(to_child[1], handle.data(), handle.size()) ==
          static_cast<ssize_t>(handle.size()));
  std::unique_ptr<RecvComm> recv;
  REQUIRE(eventually([&] { return listener->accept(recv) == Status::ok; }, 10000));
  Link other = world.connect();
  {
    Buffer to(*recv, 4096);
    for (int i = 0; i < 10; ++i) {
      to.clear();
      Request* r = start_recv(*recv, {to.receive(0)});
      CHECK(finish(r).bytes[0] == 4096);
      CHECK(to.holds(5, 4096));
    }
    Request* waiting = start_recv(*recv, {to.receive(0)});
    Completion c;
    REQUIRE(waiting->test(c) == Status::ok);
    char ready = 0;
    REQUIRE(::read(from_child[0], &ready, 1) == 1);
    REQUIRE(::kill(child, SIGKILL) == 0);
    const std::int64_t begin = now_ns();
    Status s = Status::ok;
    REQUIRE(eventually([&] { return (s = waiting->test(c)) != Status::ok; }));
    CHECK(s == Status::remote);
    CHECK(now_ns() - begin < 2 * kSecond);
    CHECK(log.has(LogLevel::warn, "pid " + std::to_string(child)));
    // A rank that has no connection to the lost one hears of it through this rank's others.
    Buffer from(*other.send, 64);
    Request* request = nullptr;
    REQUIRE(eventually([&] {
      return other.send->isend(from.data(), 64, 0, from.memory, &request) == Status::remote;
    }));
    CHECK(log.has(LogLevel::warn, "lost another rank of this communicator"));
    CHECK(now_ns() - begin < 3 * kSecond);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  for (int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(fd);
}

}  // namespace
}  // namespace twinpath::test
