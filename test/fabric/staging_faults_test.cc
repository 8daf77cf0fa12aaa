// Host staging when something goes wrong or goes away in the middle.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "test/fabric/lone_sender.h"
#include "test/fabric/staged_world.h"
#include "test/support/child_process.h"

namespace twinpath::test {
namespace {

constexpr std::size_t kOneMiB = std::size_t{1} << 20;

// Tests both until one gives an error.
Status until_error(Request* a, Request* b) {
  Status s = Status::ok;
  Completion ca, cb;
  (void)eventually([&] {
    if (a != nullptr && !ca.done) s = a->test(ca);
    if (s == Status::ok && b != nullptr && !cb.done) s = b->test(cb);
    return s != Status::ok;
  });
  return s;
}

}  // namespace

TEST_CASE("A copy from the GPU that fails ends the connection and names GPU and cause") {
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::staged, Use::direct);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, kOneMiB), to(fake, *link.recv, kOneMiB);
  fake.bad_address = reinterpret_cast<std::uintptr_t>(from.data()) + 512 * 1024;
  Request* receive = start_recv(*link.recv, {to.receive(0, 0, kOneMiB)});
  Request* send = start_send(*link.send, from, kOneMiB, 0, receive);
  CHECK(until_error(send, nullptr) == Status::remote);
  CHECK(log.has(LogLevel::warn, "cuMemcpyAsync"));
  CHECK(log.has(LogLevel::warn, "262144 bytes of GPU 0 cannot be sent through host memory"));
  CHECK(until_error(receive, nullptr) == Status::remote);
}

TEST_CASE("A copy to the GPU that fails ends the connection and names GPU and cause") {
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::direct, Use::staged);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, kOneMiB), to(fake, *link.recv, kOneMiB);
  fake.bad_address = reinterpret_cast<std::uintptr_t>(to.data());
  Request* receive = start_recv(*link.recv, {to.receive(0, 0, 24)});
  Request* send = start_send(*link.send, from, 24, 0, receive);
  CHECK(until_error(receive, send) == Status::remote);
  CHECK(log.has(LogLevel::warn, "received data cannot be copied from host memory to GPU 0"));
}

TEST_CASE("Host memory that cannot be had for staging is named with GPU, bytes and remedy") {
  FakeGpu fake;
  for (const bool at_sender : {true, false}) {
    LogCapture log;
    Ends ends(Use::staged, Use::staged);
    Link link = ends.connect();
    fake.refused_bytes = 12345;
    Comm& comm = at_sender ? static_cast<Comm&>(*link.send) : static_cast<Comm&>(*link.recv);
    GpuBuffer refused(fake, comm, 12345);
    CHECK(refused.status == Status::no_memory);
    REQUIRE(log.warnings().size() == 1);
    for (const char* part :
         {"GPU 0", "12345 bytes of pinned host memory", "FAKE_ERROR", "free host memory"})
      CHECK(log.has(LogLevel::warn, part));
    fake.refused_bytes = 0;
    GpuBuffer granted(fake, comm, 12345);
    CHECK(granted.status == Status::ok);
  }
}

TEST_CASE("What the driver does not know as GPU memory cannot be staged") {
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::staged, Use::staged);
  Link link = ends.connect();
  std::vector<std::uint8_t> ordinary(100);
  CHECK(link.send->register_memory(ordinary.data(), 100, MemoryType::cuda, 0, -1).status() ==
        Status::bad_argument);
  CHECK(log.has(LogLevel::warn, "does not know them as memory of a GPU"));
}

TEST_CASE("Memory registered for another plan is refused, not misused") {
  FakeGpu fake;
  LogCapture log;
  Ends staged(Use::staged, Use::staged);
  Link link = staged.connect();
  GpuBuffer from(fake, *link.send, 100);
  // The same device, but of a peer that is reached directly, has another comm.
  Ends direct(Use::direct, Use::direct);
  Link other = direct.connect();
  GpuBuffer to(fake, *other.recv, 100);
  Request* request = nullptr;
  CHECK(other.send->isend(from.data(), 100, 0, from.memory, &request) == Status::bad_argument);
  const RecvBuffer b = to.receive(0, 0, 100);
  CHECK(link.recv->irecv({&b, 1}, false, &request) == Status::bad_argument);
  CHECK(log.warnings().size() == 2);
  CHECK(log.has(LogLevel::warn, "stages all of it"));
  CHECK(log.has(LogLevel::warn, "does not stage it"));
}

TEST_CASE("A message longer than its staged receive is cut to it") {
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::staged, Use::staged);
  Link link = ends.connect();
  GpuBuffer from(fake, *link.send, kOneMiB), to(fake, *link.recv, kOneMiB);
  from.fill(4, 0, kOneMiB);
  for (const std::size_t room : {std::size_t{300000}, std::size_t{10}}) {
    to.blank();
    Request* receive = start_recv(*link.recv, {to.receive(0, 0, room)});
    const Both both = finish_both(start_send(*link.send, from, kOneMiB, 0, receive), receive);
    CHECK(both.sent.bytes[0] == room);
    CHECK(both.received.bytes[0] == room);
    CHECK(to.holds(4, 0, room));
    CHECK(to.is_blank(room, kOneMiB - room));
  }
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("Closing while copies are under way waits for them and for nothing else") {
  FakeGpu fake;
  for (const bool sender_first : {true, false}) {
    for (const bool give_back_first : {true, false}) {
      Ends ends(Use::staged, Use::staged);
      Link link = ends.connect();
      std::vector<std::unique_ptr<GpuBuffer>> from, to;
      for (int i = 0; i < 4; ++i) {
        from.push_back(std::make_unique<GpuBuffer>(fake, *link.send, 3 * kOneMiB));
        to.push_back(std::make_unique<GpuBuffer>(fake, *link.recv, 3 * kOneMiB));
        Request* receive = start_recv(*link.recv, {to.back()->receive(i, 0, 3 * kOneMiB)});
        if (i == 3) fake.pause(true);
        (void)start_send(*link.send, *from.back(), 3 * kOneMiB, i, receive);
        Completion c;
        for (int k = 0; i < 3 && k < 20; ++k) (void)receive->test(c);
      }
      const std::int64_t begin = now_ns();
      std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        fake.slow = true;
        fake.pause(false);
      });
      if (give_back_first) {
        from.clear();
        to.clear();
      } else {
        for (auto* all : {&from, &to})
          for (auto& buffer : *all) buffer->forget();
      }
      if (sender_first) link.send.reset();
      link.recv.reset();
      link.send.reset();
      later.join();
      CHECK(now_ns() - begin > 40 * kMillisecond);
      CHECK(now_ns() - begin < 5 * kSecond);
      fake.slow = false;
    }
  }
}

TEST_CASE("Memory given back in the middle of a transfer breaks that connection only") {
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::staged, Use::staged);
  Link link = ends.connect(), other = ends.connect();
  GpuBuffer to(fake, *link.recv, 30 * kOneMiB);
  Request *send = nullptr, *receive = start_recv(*link.recv, {to.receive(0, 0, 30 * kOneMiB)});
  {
    GpuBuffer from(fake, *link.send, 30 * kOneMiB);
    send = start_send(*link.send, from, 30 * kOneMiB, 0, receive);
  }
  CHECK(until_error(send, nullptr) == Status::remote);
  CHECK(log.has(LogLevel::warn, "deregistered while it was being sent"));
  GpuBuffer here(fake, *other.send, 1000), there(fake, *other.recv, 1000);
  here.fill(1, 0, 1000);
  Request* r = start_recv(*other.recv, {there.receive(0, 0, 1000)});
  finish_both(start_send(*other.send, here, 1000, 0, r), r);
  CHECK(there.holds(1, 0, 1000));
}

// A second process over the same fabric that sends from host memory and then waits to be killed.
TEST_CASE("(the other process of the staging test below)", "[.child]") {
  const Role role = own_role();
  HandleArray handle;
  if (!hear(role.fd, handle)) _exit(1);
  const LoneSender sender = connect_or_exit(soft_config(), handle);
  SendComm* const comm = sender.comm.get();
  Buffer from(*comm, 3 * kOneMiB, 5);
  for (int i = 0; i < 3; ++i) {
    Request* r = nullptr;
    while (r == nullptr)
      if (const Status s = comm->isend(from.data(), from.size(), 0, from.memory, &r);
          s != Status::ok && s != Status::again)
        _exit(5);
    Completion c;
    while (!c.done)
      if (r->test(c) != Status::ok) _exit(6);
  }
  if (!tell(role.fd, char{1})) _exit(7);
  for (;;) ::pause();
}

TEST_CASE(
    "A sender that is killed while its data are being copied is noticed, and closing is safe") {
  const ChildProcess child("sender");  // forked before this process has an adapter
  FakeGpu fake;
  LogCapture log;
  Ends ends(Use::staged, Use::staged);
  HandleArray handle;
  std::unique_ptr<Listener> listener;
  REQUIRE(ends.receiver->listen(ends.to, handle, listener) == Status::ok);
  REQUIRE(tell(child.fd, handle));
  std::unique_ptr<RecvComm> recv;
  REQUIRE(eventually([&] { return listener->accept(recv) == Status::ok; }, 10000));
  {
    GpuBuffer to(fake, *recv, 4 * 3 * kOneMiB);
    std::vector<Request*> receives;
    for (std::size_t i = 0; i < 4; ++i)
      receives.push_back(start_recv(*recv, {to.receive(0, i * 3 * kOneMiB, 3 * kOneMiB)}));
    fake.pause(true);  // three arrive, none of them on the GPU
    pollfd ready{child.fd, POLLIN, 0};
    Completion c;
    REQUIRE(eventually(
        [&] {
          REQUIRE(receives[0]->test(c) == Status::ok);
          return ::poll(&ready, 1, 0) == 1;
        },
        10000));
    CHECK_FALSE(c.done);
    REQUIRE(::kill(child.pid, SIGKILL) == 0);
    CHECK(until_error(receives[0], nullptr) == Status::remote);
    CHECK(log.has(LogLevel::warn, "pid " + std::to_string(child.pid)));
    CHECK(until_error(receives[3], nullptr) == Status::remote);
    fake.pause(false);
    recv.reset();
    to.forget();
    CHECK(to.is_blank(9 * kOneMiB, 3 * kOneMiB));
    CHECK(to.guards_intact());
  }
}

}  // namespace twinpath::test
