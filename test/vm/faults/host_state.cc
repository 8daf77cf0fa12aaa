#include "test/vm/faults/host_state.h"

#include <csignal>

#include "test/vm/faults/remote_end.h"

namespace twinpath::test {
namespace {

// Status 0 when the kernel holds no object of a process.
constexpr const char* kNoObjects =
    "! { for o in qp cq mr pd ctx; do rdma res show $o; done; } | grep -q ' pid '";

// Runs a shell command in one of the two machines.
bool run_at(Case& c, Side s, const std::string& command) {
  return s == *c.topology.here ? run_program({"sh", "-c", command})
                               : run_there(command, c.limit(kDetect));
}

// The MTU of one machine's data interface, put back at the end.
class HostMtu {
 public:
  HostMtu(Case& c, Side s) : case_(c), side_(s), ok_(set(1500)) {
    rest_ms(50);  // the driver hears of it by a notifier
  }
  ~HostMtu() {
    (void)set(4200);
    rest_ms(50);
  }
  HostMtu(const HostMtu&) = delete;
  HostMtu& operator=(const HostMtu&) = delete;
  bool ok() const { return ok_; }

 private:
  bool set(int mtu) {
    return run_at(case_, side_,
                  "ip link set " + case_.topology.of(side_).netdev + " mtu " + std::to_string(mtu));
  }
  Case& case_;
  const Side side_;
  const bool ok_;
};

// Puts an address of a network that the other machine is not in before the good one of the GID
// table, at one machine; takes it away again.
class ForeignAddress {
 public:
  ForeignAddress(Case& c, Side s)
      : case_(c),
        side_(s),
        device_(" dev " + c.topology.of(s).netdev),
        ok_(run_at(c, s,
                   "ip addr del " + own() + " && ip addr add " + kForeign + device_ +
                       " && ip addr add " + own())) {
    rest_ms(50);
  }
  ~ForeignAddress() {
    // So that the good one gets its place in the table again.
    (void)run_at(case_, side_,
                 "ip addr del " + (kForeign + device_) + " && ip addr del " + own() +
                     " && ip addr add " + own());
    rest_ms(50);
  }
  ForeignAddress(const ForeignAddress&) = delete;
  ForeignAddress& operator=(const ForeignAddress&) = delete;
  bool ok() const { return ok_; }

 private:
  static inline const std::string kForeign = "192.168.99.7/24";
  std::string own() const { return case_.topology.of(side_).address + "/24" + device_; }
  Case& case_;
  const Side side_;
  const std::string device_;
  const bool ok_;
};

}  // namespace

// One machine's MTU is the smaller one when they connect: from the start, or since the processes
// had their adapters open.  Both use it; and the greater one again when it is back.
void mtu_hosts(Case& c) {
  const auto check = [&](Exchange& x, bool small, const char* when) {
    const Counter packets({c.topology.of(Side::sender).rdma}, "sent_pkts");
    const std::uint64_t before = x.end(Side::sender).bytes.load();
    if (!c.expect(x.wait_messages(x.messages() + 10, c.limit(kMove)),
                  std::string(when) + ": " + x.describe(Side::sender) + "; " +
                      x.describe(Side::receiver)))
      return false;
    c.expect_all_right(x, c.limit(kMove));
    const auto bytes = static_cast<long long>(x.end(Side::sender).bytes.load() - before);
    // Messages under way at the beginning blur it; 4096 would make a quarter of them.
    return c.expect((packets.grown() > bytes / 2048) == small,
                    std::string(when) + ": " + std::to_string(packets.grown()) + " packets for " +
                        std::to_string(bytes) + " bytes");
  };
  for (const Side s : {Side::sender, Side::receiver}) {
    Exchange x(c.plan(Side::sender), c.plan(Side::receiver), {262144});
    if (!c.expect(x.wait_connected(c.limit(kConnect)), x.describe(Side::sender)) ||
        !check(x, false, "equal MTUs"))
      return;
    {
      const HostMtu small(c, s);
      c.expect(small.ok(), "the MTU cannot be set");
      if (!c.expect(x.reconnect(c.limit(kConnect)), x.describe(Side::sender)) ||
          !check(x, true, "the smaller MTU at one end"))
        return;
    }
    if (!c.expect(x.reconnect(c.limit(kConnect)), x.describe(Side::sender)) ||
        !check(x, false, "the greater MTU again"))
      return;
  }
  c.note("in packets of 1024 bytes while one end's MTU was small");
}

// The foreign address is the one that is chosen.  The machines share a link, over which the kernel
// reaches it all the same.
void gid_foreign(Case& c) {
  for (const Side s : {Side::sender, Side::receiver}) {
    const ForeignAddress foreign(c, s);
    c.expect(foreign.ok(), "the addresses cannot be changed");
    Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
    if (c.expect(x.wait_connected(c.limit(kConnect)) && x.wait_messages(20, c.limit(kMove)),
                 x.describe(Side::sender) + "; " + x.describe(Side::receiver)))
      c.expect_all_right(x, c.limit(kMove));
  }
}

// Both machines have it, as every host has that of some bridge: each is itself at that address.
void gid_same(Case& c) {
  const ForeignAddress one(c, Side::sender), other_one(c, Side::receiver);
  c.expect(one.ok() && other_one.ok(), "the addresses cannot be changed");
  const std::int64_t begin = now_ns();
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  for (const Side s : {Side::sender, Side::receiver}) {
    x.wait_ended(s, c.limit(kConnect));
    if (!c.expect(x.phase(s) == Phase::failed, "no error: " + x.describe(s))) continue;
    c.detected(x, s, begin);
    c.said(x, s);
    const std::string text = x.warnings(s);
    for (const char* part : {"rxe0 of vm-a", "rxe0 of vm-b", "the same address ::ffff:192.168.99.7",
                             "(GID index 1 and 1)", "NCCL_IB_ADDR_RANGE"})
      c.expect(text.find(part) != std::string::npos,
               std::string("the ") + side_name(s) + "'s message lacks \"" + part + "\": " + text);
  }
}

// What the kernel holds for processes; its own objects have no pid.
void nothing_left(Case& c) {
  {
    Exchange killed(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
    c.expect(killed.wait_connected(c.limit(kConnect)) && killed.wait_messages(5, c.limit(kMove)),
             killed.describe(Side::sender));
    const Side here = *c.topology.here;
    c.expect(!run_at(c, here, kNoObjects) && !run_at(c, other(here), kNoObjects),
             "a connection in use is not seen");
    killed.signal(here, SIGKILL);
    killed.wait_ended(other(here), c.limit(kDetect));
  }
  for (const Side s : {Side::sender, Side::receiver}) {
    bool none = false;
    for (int i = 0; i < 20 && !none; ++i) none = run_at(c, s, kNoObjects);
    c.expect(none, std::string("objects are left at the ") + side_name(s));
  }
  c.note("no queue, key or domain of any process on either machine");
}

}  // namespace twinpath::test
