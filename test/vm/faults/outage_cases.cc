// Two rails, and outages that are long, that repeat, or that take both.
#include <optional>

#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

const std::vector<std::size_t> kMixed{262144, 8, 131072, 65536, 1000};

// Both rails of each end as one device, with an adapter that never gives up by itself.
struct Rails {
  explicit Rails(const Case& c)
      : sender(c.plan_all_rails(Side::sender)), receiver(c.plan_all_rails(Side::receiver)) {
    for (EndPlan* p : {&sender, &receiver}) {
      p->config.ib_retry_cnt = 7;
      p->config.failover_hold_ms = 20000;
    }
  }
  EndPlan sender, receiver;
};

bool runs(Case& c, Exchange& x) {
  return c.expect(x.wait_connected(kConnect) && x.wait_messages(20, kMove),
                  x.describe(Side::sender) + "; " + x.describe(Side::receiver));
}

bool goes_on(Case& c, Exchange& x, std::uint64_t messages, const char* when) {
  return c.expect(
      x.wait_messages(x.messages() + messages, kMove),
      std::string(when) + ": " + x.describe(Side::sender) + "; " + x.describe(Side::receiver));
}

// The second rail carries at least two fifths of what both do, soon.
bool carries_again(Case& c, Exchange& x, const char* when) {
  const std::int64_t begin = now_ns();
  while (now_ns() - begin < 4 * kSecond) {
    const Counter one({c.topology.of(Side::sender, 0).rdma}, "sent_pkts");
    const Counter two({c.topology.of(Side::sender, 1).rdma}, "sent_pkts");
    if (!goes_on(c, x, 10, when)) return false;
    const auto a = static_cast<double>(one.grown()), b = static_cast<double>(two.grown());
    if (b >= 0.4 * (a + b)) return true;
  }
  return c.expect(false, std::string(when) + ": the rail carries less than 40 % 4 s later");
}

void flaps(Case& c) {
  const Rails rails(c);
  Exchange x(rails.sender, rails.receiver, kMixed);
  if (!runs(c, x)) return;
  const int count = 5;
  for (int i = 0; i < count; ++i) {
    {
      const LinkDown down(c.topology.of(Side::sender, 1).netdev);
      c.expect(down.ok(), "the link cannot be taken down");
      if (!goes_on(c, x, 20, "with one rail")) return;
      rest_ms(300);
    }
    c.expect(wait_ports_active(c.topology.rdma_devices()), "the rail does not come back");
    if (!carries_again(c, x, "after a flap")) return;
  }
  c.note(std::to_string(count) + " flaps");
  c.expect_all_right(x, kMove);
}

// Longer than all pauses between tries, of which the timers are shortened.
void away_for_long(Case& c) {
  Rails rails(c);
  for (EndPlan* p : {&rails.sender, &rails.receiver})
    p->config.failover_pace = {200, 800, 100, 200};
  Exchange x(rails.sender, rails.receiver, kMixed);
  if (!runs(c, x)) return;
  {
    const Cut cut(c.topology.of(Side::sender, 1).netdev);
    c.expect(cut.ok(), "the rail cannot be cut");
    for (const std::int64_t end = now_ns() + 5 * kSecond; now_ns() < end;)
      if (!goes_on(c, x, 5, "while the rail is cut")) return;
  }
  if (!carries_again(c, x, "after 5 s without the rail")) return;
  c.expect_all_right(x, kMove);
}

void both_away(Case& c) {
  const Rails rails(c);
  Exchange x(rails.sender, rails.receiver, kMixed);
  if (!runs(c, x)) return;
  std::optional<LinkDown> first(std::in_place, c.topology.of(Side::sender, 0).netdev);
  const LinkDown second(c.topology.of(Side::sender, 1).netdev);
  c.expect(first->ok() && second.ok(), "the links cannot be taken down");
  rest_ms(3000);
  first.reset();
  if (!goes_on(c, x, 50, "when one of both is back")) return;
  c.expect_all_right(x, kMove);
}

void both_gone(Case& c) {
  Rails rails(c);
  // Both at once, so that nobody stops before an adapter has given up (7 is for ever here).
  for (EndPlan* p : {&rails.sender, &rails.receiver}) {
    p->config.failover_hold_ms = 1000;
    p->config.ib_retry_cnt = 6;
  }
  Exchange x(rails.sender, rails.receiver, kMixed);
  if (!runs(c, x)) return;
  const LinkDown first(c.topology.of(Side::sender, 0).netdev);
  const LinkDown second(c.topology.of(Side::sender, 1).netdev);
  const std::int64_t begin = now_ns();
  for (const Side s : {Side::sender, Side::receiver}) {
    c.expect(x.wait_ended(s, kDetect) && x.phase(s) == Phase::failed,
             "no error within 10 s: " + x.describe(s));
    c.detected(x, s, begin);
  }
  c.expect(
      (x.warnings(Side::sender) + x.warnings(Side::receiver)).find("TWINPATH_FAILOVER_HOLD_MS") !=
          std::string::npos,
      "neither end says for how long it waited: " + x.reason(Side::sender));
}

void other_follows(Case& c) {
  for (const int later_ms : {0, 5, 20}) {
    const Rails rails(c);
    Exchange x(rails.sender, rails.receiver, kMixed);
    if (!runs(c, x)) return;
    {
      std::optional<LinkDown> first(std::in_place, c.topology.of(Side::sender, 1).netdev);
      rest_ms(later_ms);
      const LinkDown second(c.topology.of(Side::sender, 0).netdev);
      rest_ms(100);
      first.reset();
      if (!goes_on(c, x, 30, "when the first of two that failed is back")) return;
    }
    c.expect(wait_ports_active(c.topology.rdma_devices()), "the rails do not come back");
    c.expect_all_right(x, kMove);
  }
}

// What the sender sends arrives, and nothing that the receiver does: it sees no fault at all.
void one_way(Case& c) {
  const Rails rails(c);
  Exchange x(rails.sender, rails.receiver, kMixed);
  if (!runs(c, x)) return;
  {
    const Netem cut(c.topology.of(Side::receiver, 1).netdev, "loss 100%");
    c.expect(cut.ok(), "tc cannot set netem");
    if (!goes_on(c, x, 100, "with one direction dead")) return;
    for (const Side s : {Side::sender, Side::receiver})
      c.expect(x.warnings(s).find("goes on over") != std::string::npos,
               std::string("the ") + side_name(s) + " does not say that it left the rail");
  }
  c.expect_all_right(x, kMove);
}

}  // namespace

// Their machine's time is two minutes, and soft-RoCE's kernel locks up under them now and then.
constexpr bool kByName = true;

const std::vector<CaseInfo>& outage_cases() {
  static const std::vector<CaseInfo> cases{
      {"rail-flaps", "F4: one of two rails goes and comes back, and is used again each time", flaps,
       2, false, kByName},
      {"rail-long", "F5: one of two rails is away for long, then back (timers shortened)",
       away_for_long, 2, false, kByName},
      {"rails-away", "F6: both rails are down for 3 s, one comes back", both_away, 2, false,
       kByName},
      {"rails-gone", "F6: both rails stay down: an error in time that says why", both_gone, 2,
       kByName},
      {"rail-follows", "F7: the other rail fails while the first is being left", other_follows, 2,
       kByName},
      {"rail-one-way", "F8: one direction of one of two rails is dead", one_way, 2, false,
       kByName}};
  return cases;
}

}  // namespace twinpath::test
