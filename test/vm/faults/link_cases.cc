// Links that go down, and paths that nothing passes any more: both ends must say so soon.
#include <optional>

#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

const std::initializer_list<const char*> kCheckLink = {"check its cable", "check cables",
                                                       "its log says why"};

bool moving(Case& c, Exchange& x) {
  return c.expect(x.wait_connected(kConnect) && x.wait_messages(30, kMove),
                  x.describe(Side::sender) + "; " + x.describe(Side::receiver));
}

// The two ends of a veth pair lose their carrier together, so each driver reports PORT_ERR; what
// differs is which end may not send any more.
void link_down(Case& c, Side side) {
  {
    Exchange x(Case::one_by_one(c.plan(Side::sender)), Case::one_by_one(c.plan(Side::receiver)),
               kMixedSizes);
    if (!moving(c, x)) return;
    const std::int64_t begin = now_ns();
    LinkDown down(c.topology.of(side).netdev);
    c.expect(down.ok(), "the link cannot be taken down");
    c.expect_error(x, Side::sender, kDetect, begin, kCheckLink);
    c.expect_error(x, Side::receiver, kDetect, begin, kCheckLink);
    // The failed write may come before the event and before the port's new state.
    for (Side s : {Side::sender, Side::receiver})
      c.expect(x.warnings(s).find("went down") != std::string::npos ||
                   x.warnings(s).find("is down") != std::string::npos,
               std::string("the ") + side_name(s) + " does not suspect its port: " + x.warnings(s));
    down.up();
    c.expect_reconnection(x);
  }
  c.expect_fresh_connection();
}

void link_down_own(Case& c) { link_down(c, Side::sender); }
void link_down_peer(Case& c) { link_down(c, Side::receiver); }

// A down link that comes up again while the connection is in use, 0.2 s later.
void link_flap(Case& c) {
  {
    Exchange x(Case::one_by_one(c.plan(Side::sender)), Case::one_by_one(c.plan(Side::receiver)),
               kMixedSizes);
    if (!moving(c, x)) return;
    const std::int64_t begin = now_ns();
    {
      LinkDown down(c.topology.of(Side::receiver).netdev);
      c.expect(down.ok(), "the link cannot be taken down");
      rest_ms(200);
    }
    // Which end had something to send in that time decides; data must be right or both must know.
    if (x.wait_messages(x.messages() + 10, kMove)) {
      c.expect_all_right(x, kDetect);
    } else {
      c.expect_error(x, Side::sender, kDetect, begin, kCheckLink);
      c.expect_error(x, Side::receiver, kDetect, begin, kCheckLink);
    }
  }
  c.expect_fresh_connection();
}

void one_way_loss(Case& c, Side side) {
  const Counter given_up({c.topology.of(Side::sender).rdma, c.topology.of(Side::receiver).rdma},
                         "retry_exceeded_err");
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  if (!moving(c, x)) return;
  const std::int64_t begin = now_ns();
  std::optional<Netem> loss;
  loss.emplace(c.topology.of(side).netdev, "loss 100%");
  c.expect(loss->ok(), "tc cannot set netem");
  c.expect_error(x, Side::sender, kDetect, begin, kCheckLink);
  c.expect_error(x, Side::receiver, kDetect, begin, kCheckLink);
  const long dropped = loss->dropped();
  if (c.expect(dropped > 0, "no packet was lost"))
    c.note(std::to_string(dropped) + " packets lost (tc)");
  c.expect_hit(given_up);
  loss.reset();
  c.expect_reconnection(x);
}

void loss_100(Case& c) { one_way_loss(c, Side::sender); }
void loss_100_back(Case& c) { one_way_loss(c, Side::receiver); }

// Data arrives, but the sender never hears of it.
void acks_lost(Case& c) {
  constexpr int kAcknowledge = 0x11;
  // Small ones: each try sends all that waits again.
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), {8, 64, 4096, 1000});
  if (!moving(c, x)) return;
  const std::int64_t begin = now_ns();
  OpcodeFilter filter(c.topology.of(Side::receiver).netdev, kAcknowledge);
  c.expect(filter.ok(), "tc cannot filter");
  c.expect_error(x, Side::sender, kDetect, begin, kCheckLink);
  c.expect_error(x, Side::receiver, kDetect, begin, kCheckLink);
  const long dropped = filter.dropped();
  if (c.expect(dropped > 0, "no acknowledgement was dropped"))
    c.note(std::to_string(dropped) + " acknowledgements dropped (tc)");
}

// The address behind the GID in use goes away.
void gid_removed(Case& c, bool reconnect) {
  const RailEnds& end = c.topology.of(Side::sender);
  const auto address = [&](const char* verb, const std::string& which) {
    std::vector<std::string> words{"ip", "addr", verb, which + "/24", "dev", end.netdev};
    if (verb == std::string("add")) words.emplace_back("noprefixroute");
    return c.expect(run_program(words), std::string("the address cannot be changed: ") + verb);
  };
  {
    Exchange x(Case::one_by_one(c.plan(Side::sender)), Case::one_by_one(c.plan(Side::receiver)),
               kMixedSizes);
    if (!moving(c, x)) return;
    const std::int64_t begin = now_ns();
    address("del", end.address);
    c.expect_error(x, Side::sender, kDetect, begin, {"check cables", "its log says why", "GID"});
    c.expect_error(x, Side::receiver, kDetect, begin, kCheckLink);
    if (reconnect) {
      address("add", end.address);  // at another index: the old one is held by the queues
      (void)restore_link(end.netdev);
      c.expect_reconnection(x);
      address("del", end.address);
    }
  }
  address("add", end.address);  // at the first free index, as it was
  c.expect(restore_link(end.netdev), "the address cannot be put back");
  c.expect_fresh_connection();
}

void gid_gone(Case& c) { gid_removed(c, false); }
void gid_moved(Case& c) { gid_removed(c, true); }

}  // namespace

const std::vector<CaseInfo>& link_cases() {
  static const std::vector<CaseInfo> cases{
      {"link-down-own", "the sender's link goes down during traffic", link_down_own},
      {"link-down-peer", "the receiver's link goes down during traffic", link_down_peer},
      {"link-flap", "the receiver's link is down for 0.2 s during traffic", link_flap},
      {"loss-100", "every packet of the sender is lost until the retries end", loss_100},
      {"loss-100-back", "every packet of the receiver is lost until the retries end",
       loss_100_back},
      {"acks-lost", "the receiver's acknowledgements are lost", acks_lost},
      {"gid-removed", "the address of the sender's GID is removed during traffic", gid_gone},
      {"gid-moved", "the same, and the processes connect again when it is back", gid_moved}};
  return cases;
}

}  // namespace twinpath::test
