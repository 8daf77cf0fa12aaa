// The smallest use of the transport; made to be stepped through with a debugger beside
// proxy/README.md.
#include "test/fabric/world.h"

namespace twinpath::test {
namespace {

TEST_CASE("One message goes from a send comm to a receive comm") {
  LogCapture log;
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 5000, 1), to(*link.recv, 8000);
  to.clear();

  Request* receive = start_recv(*link.recv, {to.receive(7)});
  Request* send = start_send(*link.send, from, 5000, 7, receive);

  const Completion sent = finish(send);
  CHECK(sent.count == 1);
  CHECK(sent.bytes[0] == 5000);
  const Completion received = finish(receive);
  CHECK(received.count == 1);
  CHECK(received.bytes[0] == 5000);
  CHECK(to.holds(1, 5000));
  CHECK(to.data()[5000] == 0);
  CHECK(log.warnings().empty());
}

}  // namespace
}  // namespace twinpath::test
