// A finished write that an adapter executes a second time: its immediate comes again, without
// bytes. Soft-RoCE does that now and then (test/vm/README.md).
#include "test/fabric/tap.h"
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

// Until the receive has ended, well or not; both ends are called meanwhile.
Status outcome_of(Request* receive, Request* send, Completion& received) {
  Status status = Status::ok;
  Completion sent;
  Status sender = Status::ok;
  REQUIRE(eventually([&] {
    if (sender == Status::ok && !sent.done) sender = send->test(sent);
    status = receive->test(received);
    return received.done || status != Status::ok;
  }));
  return status;
}

TEST_CASE("A message that comes twice ends the connection by that name, with the first one whole") {
  LogCapture log;
  World world(soft_config(), -1, Tap::on);
  Link link = world.connect();
  Buffer from(*link.send, 70000, 1), to(*link.recv, 70000), next(*link.recv, 70000);
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Tap::repeat_writes = 1;
  Request* send = start_send(*link.send, from, from.size(), 0, receive);
  Completion c;
  CHECK(outcome_of(receive, send, c) == Status::ok);
  CHECK(c.bytes[0] == from.size());
  CHECK(to.holds(1, from.size()));
  // The second one is no message of the next receive, which has the same request.
  Request* later = nullptr;
  const RecvBuffer b = next.receive(0);
  Status status = link.recv->irecv({&b, 1}, false, &later);
  Completion none;
  REQUIRE(eventually([&] {
    if (status == Status::ok) status = later->test(none);
    return status != Status::ok || none.done;
  }));
  CHECK(status == Status::remote);
  CHECK(log.has(LogLevel::warn, "one message a second time"));
  CHECK(log.has(LogLevel::warn, ", 0 bytes)"));
}

TEST_CASE("A chunk that comes twice does not stand in for one that is still under way") {
  for (const char* queues : {"2", "4"}) {
    INFO(queues << " queues");
    LogCapture log;
    Config config = soft_config();
    config.ib_qps_per_connection = std::stoi(queues);
    config.ib_split_data_on_qps = true;
    World world(config, -1, Tap::on);
    Link link = world.connect();
    Buffer from(*link.send, 1 << 20, 1), to(*link.recv, 1 << 20);
    Request* receive = start_recv(*link.recv, {to.receive(0)});
    Tap::repeat_writes = 1;
    Tap::lose_writes = 1;
    Request* send = start_send(*link.send, from, from.size(), 0, receive);
    Completion c;
    CHECK(outcome_of(receive, send, c) == Status::remote);
    CHECK_FALSE(c.done);
    CHECK(log.has(LogLevel::warn, "chunks a second time"));
  }
}

}  // namespace
}  // namespace twinpath::test
