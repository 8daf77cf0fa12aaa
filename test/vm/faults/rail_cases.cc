// Two rails, of which one is missing, fails or is bad.
#include <algorithm>
#include <array>
#include <cstdio>

#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

const std::vector<std::size_t> kStriped{262144, 8, 131072, 65536, 1000};

// Every rail has carried data of that many bytes or more.
void expect_carried(Case& c, const Counter& packets, long long least) {
  c.expect(packets.grown() >= least,
           packets.name() + " has grown by " + std::to_string(packets.grown()) + " only");
}

void both_rails(Case& c) {
  const Counter first({c.topology.of(Side::sender, 0).rdma}, "sent_pkts");
  const Counter second({c.topology.of(Side::sender, 1).rdma}, "sent_pkts");
  Exchange x(c.plan_all_rails(Side::sender), c.plan_all_rails(Side::receiver), kStriped);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(60, kMove), x.describe(Side::sender)))
    return;
  c.expect_all_right(x, kMove);
  expect_carried(c, first, 200);
  expect_carried(c, second, 200);
  c.note("packets by rail " + std::to_string(first.grown()) + " and " +
         std::to_string(second.grown()));
}

// One rail is down when the processes start: they go on with the other and say so.
void rail_down_at_start(Case& c) {
  const std::int64_t begin = now_ns();
  const LinkDown down(c.topology.of(Side::sender, 1).netdev);
  for (int i = 0; i < 1000 && port_is_active(c.topology.of(Side::receiver, 1).rdma); ++i)
    rest_ms(1);
  const Counter first({c.topology.of(Side::sender, 0).rdma}, "sent_pkts");
  const Counter second({c.topology.of(Side::sender, 1).rdma}, "sent_pkts");
  Exchange x(c.plan_all_rails(Side::sender), c.plan_all_rails(Side::receiver), kStriped);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(40, kMove),
                x.describe(Side::sender) + "; " + x.describe(Side::receiver)))
    return;
  c.expect_all_right(x, kMove);
  expect_carried(c, first, 200);
  c.expect(second.grown() == 0, "the rail that is down was used");
  for (Side s : {Side::sender, Side::receiver}) {
    const std::string text = x.warnings(s);
    c.expect(
        text.find(c.topology.of(s, 1).rdma + ":1 is named by NCCL_IB_HCA") != std::string::npos &&
            text.find("DOWN") != std::string::npos,
        std::string("the ") + side_name(s) + " does not name its rail: " + text);
    if (x.end(s).warnings.load() > 0)
      c.note("named after " + std::to_string((x.end(s).warning[0].at - begin) / kMillisecond) +
             " ms by the " + side_name(s));
  }
}

// One end has one rail, the other two: there is no path from the first rail to the second.
void rail_missing_here(Case& c) {
  const std::int64_t begin = now_ns();
  Exchange x(c.plan(Side::sender), c.plan_all_rails(Side::receiver), kStriped);
  if (x.wait_connected(kConnect) && x.wait_messages(40, kMove)) {
    c.expect_all_right(x, kMove);
    return;
  }
  for (Side s : {Side::sender, Side::receiver})
    c.expect_error(x, s, kDetect, begin, {"check", "its log says why", "NCCL_IB_GID_INDEX"});
}

// One device out of both rails, or the first rail alone, with the second in reserve.
enum class Used { both, first };

// Traffic goes on over the other rail, and over both (or the first) when it is back.
template <class Fault>
void survives(Case& c, Fault&& fault, bool comes_back, Used used = Used::both) {
  const std::size_t rail = used == Used::both ? 1 : 0;
  const RailEnds& here = c.topology.of(Side::sender, rail);
  const RailEnds& there = c.topology.of(Side::receiver, rail);
  EndPlan sender = c.plan_all_rails(Side::sender), receiver = c.plan_all_rails(Side::receiver);
  sender.merge = receiver.merge = used == Used::both;
  // The adapter would take its time to say so.
  sender.config.ib_retry_cnt = receiver.config.ib_retry_cnt = 7;
  Exchange x(sender, receiver, kStriped);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(20, kMove), x.describe(Side::sender)))
    return;
  {
    const auto broken = fault(here, there);
    c.expect(broken.ok(), "the rail cannot be taken away");
    c.expect(x.wait_messages(x.messages() + 100, kMove),
             x.describe(Side::sender) + "; " + x.describe(Side::receiver));
    c.expect(x.warnings(Side::sender).find("goes on") != std::string::npos ||
                 x.warnings(Side::receiver).find("goes on") != std::string::npos,
             "neither end says that it left a rail");
  }
  if (comes_back) {
    c.expect(wait_ports_active({here.rdma, there.rdma}), "the rail does not come back");
    const Counter again({here.rdma}, "sent_pkts");
    for (int i = 0; i < 100 && again.grown() < 200; ++i)
      c.expect(x.wait_messages(x.messages() + 10, kMove), x.describe(Side::sender));
    expect_carried(c, again, 200);
  }
  c.expect_all_right(x, kMove);
  // "goes on over ... after 12 ms"
  const std::string said = x.warnings(Side::sender) + x.warnings(Side::receiver);
  const std::size_t at = said.find(" after ", said.find("goes on over"));
  if (at != std::string::npos)
    c.note("stopped for" + said.substr(at + 6, said.find(';', at) - at - 6));
}

void rail_down_during(Case& c) {
  survives(
      c, [](const RailEnds& here, const RailEnds&) { return LinkDown(here.netdev); }, true);
}

void rail_down_there(Case& c) {
  survives(
      c, [](const RailEnds&, const RailEnds& there) { return LinkDown(there.netdev); }, true);
}

void rail_cut(Case& c) {
  survives(
      c, [](const RailEnds& here, const RailEnds&) { return Cut(here.netdev); }, false);
}

void rail_acknowledgements(Case& c) {
  survives(
      c, [](const RailEnds&, const RailEnds& there) { return OpcodeFilter(there.netdev, 0x11); },
      false);
}

void alone_down(Case& c) {
  survives(
      c, [](const RailEnds& here, const RailEnds&) { return LinkDown(here.netdev); }, true,
      Used::first);
}

void alone_down_there(Case& c) {
  survives(
      c, [](const RailEnds&, const RailEnds& there) { return LinkDown(there.netdev); }, true,
      Used::first);
}

void alone_cut(Case& c) {
  survives(
      c, [](const RailEnds& here, const RailEnds&) { return Cut(here.netdev); }, false,
      Used::first);
}

void rail_lossy(Case& c) {
  const Counter second({c.topology.of(Side::sender, 1).rdma}, "sent_pkts");
  EndPlan sender = c.plan_all_rails(Side::sender), receiver = c.plan_all_rails(Side::receiver);
  sender.config.ib_retry_cnt = receiver.config.ib_retry_cnt = 7;  // see Case::patient_plan
  sender.config.stall_ms = receiver.config.stall_ms = 0;          // or it would be left
  Exchange x(sender, receiver, kStriped);
  if (!c.expect(x.wait_connected(kConnect), x.describe(Side::sender))) return;
  const Netem here(c.topology.of(Side::sender, 1).netdev, "loss 5%");
  x.wait_messages(100, kMove);
  // The more a rail loses the less it is given, so 100 messages may lose next to nothing.
  while (here.dropped() < 3 && x.messages() < 1000)
    if (!x.wait_messages(x.messages() + 50, kMove)) break;
  c.expect_all_right(x, kMove);
  const long dropped = here.dropped();
  if (c.expect(dropped >= 3, "only " + std::to_string(dropped) + " packets were lost"))
    c.note(std::to_string(dropped) + " packets lost (tc)");
  expect_carried(c, second, 200);
}

bool address(const char* verb, const RailEnds& end) {
  std::vector<std::string> words{"ip", "addr", verb, end.address + "/24", "dev", end.netdev};
  if (verb == std::string("add")) words.emplace_back("noprefixroute");
  return run_program(words);
}

// A rail's address, and with it its GID, as long as this lives.
class AddressAway {
 public:
  explicit AddressAway(const RailEnds& end) : end_(end), ok_(address("del", end)) {}
  ~AddressAway() {
    (void)address("add", end_);
    (void)restore_link(end_.netdev);
  }
  AddressAway(const AddressAway&) = delete;
  AddressAway& operator=(const AddressAway&) = delete;
  bool ok() const { return ok_; }

 private:
  const RailEnds end_;
  const bool ok_;
};

void rail_address(Case& c) {
  survives(
      c, [](const RailEnds& here, const RailEnds&) { return AddressAway(here); }, true);
  // At the index that it had: nobody holds that any more.
  { const AddressAway again(c.topology.of(Side::sender, 1)); }
  c.expect(wait_ports_active({c.topology.of(Side::sender, 1).rdma}),
           "the address does not come back");
}

void rail_slow(Case& c) {
  // Slow enough that the link is what counts, not the machine.
  const std::string healthy = "rate 160mbit limit 4000", slow = "rate 16mbit limit 4000";
  constexpr std::size_t kBytes = 131072;
  EndPlan sender = c.plan_all_rails(Side::sender), receiver = c.plan_all_rails(Side::receiver);
  for (EndPlan* p : {&sender, &receiver}) {
    p->window = 2;
    p->config.ib_timeout = 15;
    p->config.stall_ms = 0;  // an emulated machine stands still for as long itself
  }
  Exchange x(sender, receiver, {kBytes});
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(4, kMove), x.describe(Side::sender)))
    return;
  Netem first(c.topology.of(Side::sender, 0).netdev, healthy);
  Netem second(c.topology.of(Side::sender, 1).netdev, healthy);
  const auto rate = [&](int ms) {  // MB/s
    const std::uint64_t before = x.messages();
    const std::int64_t begin = now_ns();
    rest_ms(ms);
    return static_cast<double>(x.messages() - before) * kBytes * 1e3 /
           static_cast<double>(now_ns() - begin);
  };
  rest_ms(300);
  const double alone = rate(1500) / 2;
  second.change(slow);
  rest_ms(1000);
  // Cut by the ports' speeds it would be a fifth.  The rule's own bound is nine tenths (see
  // send/lane_shares.h, and its model in a time of its own); here the processor is part of what is
  // measured, and other programs may want it.
  constexpr double kPart = 0.75;
  const auto named = [&] {
    return x.warnings(Side::sender).find("finds rail " + c.topology.of(Side::sender, 1).rdma) !=
           std::string::npos;
  };
  double now = rate(600);
  for (int i = 0; i < 12 && (now <= kPart * alone || !named()); ++i) now = std::max(now, rate(600));
  c.expect(first.ok() && second.ok(), "tc cannot set netem");
  std::array<char, 120> text;
  (void)std::snprintf(text.data(), text.size(), "%.1f MB/s where a healthy rail alone brings %.1f",
                      now, alone);
  if (c.expect(now > kPart * alone, text.data())) c.note(text.data());
  c.expect(named(), "the rail is not named: " + x.warnings(Side::sender));
  second.change(healthy);
  c.expect_all_right(x, kMove);
}

}  // namespace

const std::vector<CaseInfo>& rail_cases() {
  static const std::vector<CaseInfo> cases{
      {"rails", "no fault: both rails carry data", both_rails, 2},
      {"rail-down-at-start", "one of two rails is down at start", rail_down_at_start, 2},
      {"rail-missing-here", "one rail at one end, two at the other", rail_missing_here, 2},
      {"rail-lossy", "one of two rails loses 5 %", rail_lossy, 2},
      {"rail-down", "F1: one of two rails goes down during traffic and comes back",
       rail_down_during, 2},
      {"rail-down-there", "F1: the same at the receiver", rail_down_there, 2},
      {"rail-cut", "F2: one of two rails loses everything without a word", rail_cut, 2},
      {"rail-acks", "F3: one of two rails loses acknowledgements", rail_acknowledgements, 2},
      {"alone-down",
       "F1: a port that NCCL uses alone goes down, another one serves till it is back", alone_down,
       2},
      {"alone-down-there", "F1: the same at the receiver", alone_down_there, 2},
      {"alone-cut", "F2: a port that NCCL uses alone loses everything without a word", alone_cut,
       2},
      {"rail-address", "F9: the address of one of two rails goes and comes back at another index",
       rail_address, 2},
      {"rail-slow", "F10: one of two rails is throttled to a tenth without any event", rail_slow,
       2}};
  return cases;
}

}  // namespace twinpath::test
