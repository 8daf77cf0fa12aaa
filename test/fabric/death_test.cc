// How another process or host ends, and what is said of it: each end has its own text.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/fabric/lone_sender.h"
#include "test/fabric/world.h"
#include "test/support/child_process.h"
#include "test/support/needs.h"
#include "test/support/outage.h"

namespace twinpath::test {
namespace {

constexpr int kLimitMs = 4000;

Config config_here() {
  Config c = soft_config();
  c.peer_timeout_ms = kLimitMs;
  return c;
}

// Connects to the parent's handle as a sender, and ends as its role says.
[[noreturn]] void be_sender(const Role& role) {
  HandleArray handle;
  if (!hear(role.fd, handle)) _exit(1);
  const LoneSender sender = connect_or_exit(config_here(), handle);
  pid_t forked = 0;
  if (role.name == "forker") {
    forked = ::fork();
    if (forked == 0)
      for (;;) ::pause();
  }
  if (!tell(role.fd, forked)) _exit(4);
  char go = 0;
  if (!hear(role.fd, go)) _exit(5);
  if (role.name == "resetter") {
    const linger hard{1, 0};
    for (const int fd : tcp_sockets())
      (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }
  _exit(0);
}

TEST_CASE("(the other process of the cases below)", "[.child]") { be_sender(own_role()); }

// A receiver here that waits for a sender in a process of the given role.
struct WaitingChild {
  ChildProcess child;  // forked before this process has an adapter
  World world{config_here()};
  HandleArray handle{};
  std::unique_ptr<Listener> listener;
  std::unique_ptr<RecvComm> recv;
  std::unique_ptr<Buffer> to;
  Request* request = nullptr;
  pid_t forked = 0;
  LogCapture log;

  explicit WaitingChild(const char* role) : child(role) {
    REQUIRE(world.b->listen(1, handle, listener) == Status::ok);
    REQUIRE(tell(child.fd, handle));
    REQUIRE(eventually([&] { return listener->accept(recv) == Status::ok; }, 20000));
    REQUIRE(hear(child.fd, forked));
    to = std::make_unique<Buffer>(*recv, 4096);
    request = start_recv(*recv, {to->receive(0)});
    log.clear();
  }
  ~WaitingChild() {
    if (forked > 0) ::kill(forked, SIGKILL);
  }
  // Milliseconds until the receive fails; -1 if it does not in that time.
  std::int64_t fails_after(std::int64_t limit_ms) {
    const std::int64_t begin = now_ns();
    Completion c;
    Status s = Status::ok;
    if (!eventually([&] { return (s = request->test(c)) != Status::ok; }, limit_ms)) return -1;
    CHECK(s == Status::remote);
    CHECK(log.warnings().size() == 1);
    return (now_ns() - begin) / kMillisecond;
  }
};

TEST_CASE("A process that was killed is said to have ended, and the others hear of it, at once") {
  WaitingChild w("sender");
  Link other = w.world.connect();
  REQUIRE(::kill(w.child.pid, SIGKILL) == 0);
  // Its own end takes processor time, too.
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(w.child.pid), &ended, WEXITED | WNOWAIT) == 0);
  const std::int64_t begin = now_ns();
  const std::int64_t after_ms = w.fails_after(5000);
  CHECK(after_ms >= 0);
  CHECK(after_ms < 2000);
  CHECK(w.log.has(LogLevel::warn, "process ended without closing the connection"));
  CHECK(w.log.has(LogLevel::warn, "pid " + std::to_string(w.child.pid)));
  CHECK_FALSE(w.log.has("control network"));
  // A rank that has no connection to the lost one hears of it through this rank's others.
  Buffer from(*other.send, 64);
  Request* request = nullptr;
  REQUIRE(eventually([&] {
    return other.send->isend(from.data(), 64, 0, from.memory, &request) == Status::remote;
  }));
  CHECK(w.log.has(LogLevel::warn, "lost another rank of this communicator"));
  CHECK(now_ns() - begin < 3 * kSecond);
}

TEST_CASE("A connection that the peer's host reset is said to be reset") {
  WaitingChild w("resetter");
  REQUIRE(tell(w.child.fd, char{1}));
  CHECK(w.fails_after(5000) >= 0);
  CHECK(w.log.has(LogLevel::warn, "reset the control connection (Connection reset by peer)"));
  CHECK_FALSE(w.log.has("control network"));
}

TEST_CASE("A host of which nothing is heard or seen is given up after the limit, not before",
          "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  WaitingChild w("sender");
  REQUIRE(::kill(w.child.pid, SIGSTOP) == 0);
  Outage outage;
  REQUIRE(outage);
  CHECK(w.fails_after(60000) >= kLimitMs - 500);
  for (const char* part : {"does not answer", "no sign of life on the control connection",
                           "lo (127.0.0.1:", "NCCL_SOCKET_IFNAME", "control network"})
    CHECK(w.log.has(LogLevel::warn, part));
  CHECK_FALSE(w.log.has("process ended"));
}

TEST_CASE("A process that is stopped while its host answers may come back", "[waits]") {
  NEEDS(!kSanitizes, "nearly all that happens is that time passes");
  WaitingChild w("sender");
  REQUIRE(::kill(w.child.pid, SIGSTOP) == 0);
  CHECK(w.fails_after(2 * kLimitMs) == -1);
  REQUIRE(::kill(w.child.pid, SIGCONT) == 0);
  CHECK(w.log.warnings().empty());
}

TEST_CASE("A process that was killed is noticed although a child that it forked lives") {
  WaitingChild w("forker");
  REQUIRE(w.forked > 0);
  REQUIRE(::kill(w.child.pid, SIGKILL) == 0);
  CHECK(w.fails_after(5000) >= 0);
  CHECK(::kill(w.forked, 0) == 0);
  CHECK(w.log.has(LogLevel::warn, "process ended without closing the connection"));
}

}  // namespace
}  // namespace twinpath::test
