// A round of failover that the next one overtakes: the receiver has gone on in it, the sender has
// not.  Schedules of faults found what is here on purpose (seed 8919).
#include "proxy/receive/recv_comm.h"
#include "proxy/send/send_comm.h"
#include "test/fabric/staged_world.h"
#include "test/fabric/tap.h"

namespace twinpath::test {
namespace {

// To its connection's failover a comm is this, to nobody else.
template <class Own, class Comm>
FailoverComm& as_failover_comm(Comm& comm) {
  return (FailoverComm&)static_cast<Own&>(comm);
}

void exchange_parcel(Link& link, Buffer& from, Buffer& to) {
  Request* receive = start_recv(*link.recv, {to.receive(0, 0, 40), to.receive(1, 40, 40)});
  Request* first = start_send(*link.send, from, 40, 0, receive);
  Request* second = start_send(*link.send, from, 40, 1, receive, 40);
  finish(first);
  finish(second);
  CHECK(finish(receive).count == 2);
}

TEST_CASE("cells of a round that was overtaken count parcels anew, and that is no mistake") {
  LogCapture log;
  // As all of this program: the soft HCA takes GPU memory, or not, from when it is first opened.
  World w(gpu_config("soft0,soft1,soft2,soft3"), -1, Tap::on);
  Link link = w.connect(w.merge({0, 1}), w.merge({2, 3}));
  Buffer from(*link.send, 5000, 3), to(*link.recv, 5000);
  const int many = 2 * kParcelPlaces;
  for (int i = 0; i < many; ++i) exchange_parcel(link, from, to);
  // The receiver begins to count anew, and the sender sees the first cell of that with queues
  // stopped once more.
  (void)as_failover_comm<ProxyRecvComm>(*link.recv).held();
  FailoverComm& sender = as_failover_comm<ProxySendComm>(*link.send);
  const std::uint64_t before = sender.held().begin;
  Request* receive = start_recv(*link.recv, {to.receive(0)});
  Completion c;
  REQUIRE(eventually([&] {
    REQUIRE(receive->test(c) == Status::ok);
    return sender.held().begin > before || !log.warnings().empty();
  }));
  CAPTURE(log.warnings());
  CHECK(log.warnings().empty());
  CHECK(sender.held().begin == before + 1);
}

}  // namespace
}  // namespace twinpath::test
