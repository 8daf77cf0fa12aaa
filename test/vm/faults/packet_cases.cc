// Packets that are lost, late, doubled or damaged: the data must be right all the same.
#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

struct Loss {
  Netem sender, receiver;
  Loss(const Case& c, const std::string& rule)
      : sender(c.topology.of(Side::sender).netdev, rule),
        receiver(c.topology.of(Side::receiver).netdev, rule) {}
  bool ok() const { return sender.ok() && receiver.ok(); }
  long dropped() const { return sender.dropped() + receiver.dropped(); }
};

// Connects, then sends under `rule` until the receiver has `messages`.
void under(Case& c, const std::string& rule, std::uint64_t messages,
           const std::function<void(Loss&)>& check) {
  Exchange x(c.patient_plan(Side::sender), c.patient_plan(Side::receiver), kMixedSizes);
  if (!c.expect(x.wait_connected(kConnect),
                x.describe(Side::sender) + "; " + x.describe(Side::receiver)))
    return;
  Loss loss(c, rule);
  if (!c.expect(loss.ok(), "tc cannot set netem " + rule)) return;
  const std::uint64_t begin = x.messages();
  x.wait_messages(begin + messages, kMove);
  c.expect_all_right(x, kMove);
  check(loss);
  for (Side s : {Side::sender, Side::receiver})
    c.expect(x.warnings(s).empty(), "unexpected warning: " + x.warnings(s));
}

void clean(Case& c) {
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  c.expect(x.wait_connected(kConnect), x.describe(Side::sender));
  x.wait_messages(200, kMove);
  c.expect_all_right(x, kMove);
  for (Side s : {Side::sender, Side::receiver})
    c.expect(x.warnings(s).empty(), "unexpected warning: " + x.warnings(s));
}

void lose(Case& c, const std::string& percent, std::uint64_t messages, long least) {
  under(c, "loss " + percent, messages, [&](Loss& loss) {
    const long dropped = loss.dropped();
    if (c.expect(dropped >= least, "only " + std::to_string(dropped) + " packets were lost"))
      c.note(std::to_string(dropped) + " packets lost (tc)");
  });
}

void loss_1(Case& c) { lose(c, "1%", 120, 5); }
void loss_5(Case& c) { lose(c, "5%", 60, 20); }

void reorder(Case& c) {
  const Counter late({c.topology.of(Side::sender).rdma, c.topology.of(Side::receiver).rdma},
                     "out_of_seq_request");
  under(c, "delay 1ms reorder 75% 50%", 100, [&](Loss&) { c.expect_hit(late, 5); });
}

void duplicate(Case& c) {
  const Counter twice({c.topology.of(Side::sender).rdma, c.topology.of(Side::receiver).rdma},
                      "duplicate_request");
  under(c, "duplicate 20%", 150, [&](Loss&) { c.expect_hit(twice, 20); });
}

// The driver counts a packet when it leaves and, with a right checksum only, when it comes in.
void corrupt(Case& c) {
  const std::vector<std::string> both{c.topology.of(Side::sender).rdma,
                                      c.topology.of(Side::receiver).rdma};
  const Counter sent(both, "sent_pkts"), received(both, "rcvd_pkts");
  under(c, "corrupt 2%", 150, [&](Loss& loss) {
    const long long damaged = sent.grown() - received.grown() - loss.dropped();
    if (c.expect(damaged >= 10, "only " + std::to_string(damaged) + " packets were damaged"))
      c.note(std::to_string(damaged) + " damaged packets refused");
  });
}

void everything(Case& c) {
  const Counter twice({c.topology.of(Side::sender).rdma, c.topology.of(Side::receiver).rdma},
                      "duplicate_request");
  under(c, "delay 1ms reorder 80% 50% loss 1% duplicate 5% corrupt 1%", 40, [&](Loss& loss) {
    c.expect(loss.dropped() > 0, "no packet was lost");
    c.expect_hit(twice);
  });
}

// All packets lost, but for a shorter time than the retries last.
void outage(Case& c) {
  Exchange x(c.patient_plan(Side::sender), c.patient_plan(Side::receiver), kMixedSizes);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(20, kMove), x.describe(Side::sender)))
    return;
  {
    Loss loss(c, "loss 100%");
    c.expect(loss.ok(), "tc cannot set netem");
    rest_ms(400);
    const long dropped = loss.dropped();
    if (c.expect(dropped > 0, "no packet was lost"))
      c.note(std::to_string(dropped) + " packets lost (tc)");
  }
  const std::uint64_t begin = x.messages();
  c.expect(x.wait_messages(begin + 20, kMove), "nothing moves after the outage");
  c.expect_all_right(x, kMove);
  c.expect(c.pause_ms() > 400, "the outage was not felt");
}

}  // namespace

const std::vector<CaseInfo>& packet_cases() {
  static const std::vector<CaseInfo> cases{
      {"clean", "no fault: what the others are compared with", clean},
      {"loss-1", "1 % of the packets of both ends lost", loss_1},
      {"loss-5", "5 % of the packets of both ends lost", loss_5},
      {"reorder", "packets overtake each other", reorder},
      {"duplicate", "20 % of the packets arrive twice", duplicate},
      {"corrupt", "a bit of 2 % of the packets is turned", corrupt},
      {"everything", "loss, reordering, duplicates and damage together", everything},
      {"outage", "no packet passes for 0.4 s", outage}};
  return cases;
}

}  // namespace twinpath::test
