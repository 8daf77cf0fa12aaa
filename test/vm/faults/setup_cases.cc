// Ends that are set up wrongly: what cannot work must say why, at once.
#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

// One end fails by itself, before it knows a peer; its message must hold all `parts`.
void expect_alone(Case& c, Exchange& x, Side s, std::int64_t begin, const std::string& call,
                  std::initializer_list<std::string> parts) {
  x.wait_ended(s, kConnect);
  if (!c.expect(x.phase(s) == Phase::failed, "no error: " + x.describe(s))) return;
  c.expect(x.end(s).call.data() == call, "failed elsewhere: " + x.describe(s));
  c.detected(x, s, begin);
  c.said(x, s);
  const std::string text = x.warnings(s);
  for (const std::string& part : parts)
    c.expect(text.find(part) != std::string::npos,
             std::string("the ") + side_name(s) + "'s message lacks \"" + part + "\": " + text);
}

// At the start of a process everything counts from its fork; the fork is the fault.
void gid_index(Case& c) {
  for (Side s : {Side::sender, Side::receiver}) {
    EndPlan plans[2] = {c.plan(Side::sender), c.plan(Side::receiver)};
    plans[static_cast<int>(s)].config.ib_gid_index = 77;
    const std::int64_t begin = now_ns();
    Exchange x(plans[0], plans[1], kMixedSizes);
    expect_alone(c, x, s, begin, s == Side::sender ? "connect" : "listen",
                 {c.topology.of(s).rdma + ":1", "NCCL_IB_GID_INDEX=77", "indices in use: 0-1",
                  "unset the variable"});
  }
  c.note("message names device, port, index, valid indices and the variable");
}

// Index 0 is the link-local IPv6 GID, index 1 the IPv4 address: there is no path between them.
void gid_family(Case& c) {
  EndPlan sender = c.plan(Side::sender);
  sender.config.ib_gid_index = 0;
  const std::int64_t begin = now_ns();
  Exchange x(sender, c.plan(Side::receiver), kMixedSizes);
  if (x.wait_connected(kConnect) && x.wait_messages(20, kMove)) {
    c.expect_all_right(x, kMove);
    return;
  }
  for (Side s : {Side::sender, Side::receiver}) {
    x.wait_ended(s, kConnect);
    if (!c.expect(x.phase(s) == Phase::failed, "no error: " + x.describe(s))) continue;
    c.detected(x, s, begin);
    c.said(x, s);
    const std::string text = x.warnings(s);
    for (const std::string& part :
         {c.topology.of(s).rdma, c.topology.of(other(s)).rdma, std::string("GID index 0"),
          std::string("fe80::"), c.topology.of(Side::receiver).address, std::string("(port 1)"),
          "pid " + std::to_string(x.pid(other(s))), std::string("NCCL_IB_GID_INDEX")})
      c.expect(text.find(part) != std::string::npos,
               std::string("the ") + side_name(s) + "'s message lacks \"" + part + "\": " + text);
  }
}

// The receiver's or the sender's interface has the smaller MTU from the start: both use it.
void mtu_unequal(Case& c) {
  for (Side s : {Side::sender, Side::receiver}) {
    const Mtu small(c.topology.of(s).netdev, 1500);
    c.expect(small.ok(), "the MTU cannot be set");
    rest_ms(50);  // the driver hears of it by a notifier
    const Counter packets({c.topology.of(Side::sender).rdma}, "sent_pkts");
    Exchange x(c.plan(Side::sender), c.plan(Side::receiver), {262144});
    if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(20, kMove),
                  x.describe(Side::sender) + "; " + x.describe(Side::receiver)))
      return;
    c.expect_all_right(x, kMove);
    const auto bytes = static_cast<long long>(x.end(Side::sender).bytes.load());
    c.expect(packets.grown() >= bytes / 1024,
             "the smaller MTU was not used: " + std::to_string(packets.grown()) + " packets for " +
                 std::to_string(bytes) + " bytes");
  }
  c.note("in packets of 1024 bytes");
}

// Both ports say 4096, but what lies between them passes less: small messages arrive, large ones
// never do.
void mtu_path(Case& c) {
  // Behind a queue, or the drop at the far end of the veth pair shows as "try again" at this one.
  const Netem queue(c.topology.of(Side::sender).netdev, "delay 0ms");
  c.expect(queue.ok(), "tc cannot set netem");
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), {64, 8, 512, 64, 8, 512, 1000, 65536});
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(16, kMove), x.describe(Side::sender)))
    return;
  const std::int64_t begin = now_ns();
  const Mtu small(c.topology.of(Side::receiver).netdev, 1500);
  c.expect(small.ok(), "the MTU cannot be set");
  c.expect_error(x, Side::sender, kDetect, begin, {"MTU"});
  c.expect_error(x, Side::receiver, kDetect, begin, {"its log says why", "MTU"});
}

void memlock_buffer(Case& c) {
  EndPlan receiver = c.plan(Side::receiver);
  receiver.memlock_kib = 64;
  const std::int64_t begin = now_ns();
  Exchange x(c.plan(Side::sender), receiver, kMixedSizes);
  expect_alone(c, x, Side::receiver, begin, "register",
               {c.topology.of(Side::receiver).rdma, "cannot register", "Cannot allocate memory",
                "the limit of locked memory is 64 KiB", "ulimit -l unlimited"});
  // The receiver gives up and closes; the sender must not wait for it.
  c.expect_error(x, Side::sender, kDetect, x.end(Side::receiver).ended_at.load(),
                 {"look for its own error message"});
}

void memlock_connection(Case& c) {
  for (Side s : {Side::sender, Side::receiver}) {
    EndPlan plans[2] = {c.plan(Side::sender), c.plan(Side::receiver)};
    plans[static_cast<int>(s)].memlock_kib = 4;
    const std::int64_t begin = now_ns();
    Exchange x(plans[0], plans[1], kMixedSizes);
    expect_alone(c, x, s, begin, s == Side::sender ? "connect" : "accept",
                 {c.topology.of(s).rdma, "of the connection's own memory", "ulimit -l unlimited"});
    c.expect_error(x, other(s), kConnect, begin, {"locked memory"});
  }
}

}  // namespace

const std::vector<CaseInfo>& setup_cases() {
  static const std::vector<CaseInfo> cases{
      {"gid-index", "NCCL_IB_GID_INDEX names no GID, at either end", gid_index},
      {"gid-family", "a link-local GID here, an IPv4 GID there", gid_family},
      {"mtu-unequal", "one end's MTU is 1024, the other's 4096", mtu_unequal},
      {"mtu-path", "packets of the connection's MTU do not pass", mtu_path},
      {"memlock-buffer", "64 KiB of locked memory, without privileges: buffers do not fit",
       memlock_buffer},
      {"memlock-connection", "4 KiB of locked memory: the connection itself does not fit",
       memlock_connection}};
  return cases;
}

}  // namespace twinpath::test
