// Two hosts: the control network, the data network, and whole machines that fail.  Each case has a
// connection in each direction, so that a sender and a receiver live through it here.
#include <cstdlib>
#include <fstream>

#include "test/vm/faults/case.h"
#include "test/vm/faults/host_state.h"
#include "test/vm/faults/remote_end.h"

namespace twinpath::test {
namespace {

// What ends a connection to a host that is gone or out of reach, by the data path or without it.
const std::initializer_list<const char*> kGone = {"check its cable", "check cables",
                                                  "its log says why", "crashed or is cut off"};

// The longer ones cost minutes and run when RXE_LONG is set.
bool long_run() { return std::getenv("RXE_LONG") != nullptr; }

std::string seconds_text(int ms) {
  return std::to_string(ms / 1000) + (ms % 1000 == 0 ? "" : "." + std::to_string(ms % 1000 / 100)) +
         " s";
}

// Asks what runs the machines to stop one; it goes on by itself.
bool stop_machine(const char* host, int seconds) {
  const char* ask = std::getenv("RXE_ASK");
  if (ask == nullptr) return false;
  std::ofstream out(ask);
  out << "stop " << host << ' ' << seconds << std::endl;
  return out.good();
}

// A connection from here and one to here.
struct Both {
  using Plan = EndPlan (Case::*)(Side) const;
  Both(Case& c, Plan plan, int peer_timeout_ms = -1)
      : there(c.topology.turned()),
        back(there),
        out(set((c.*plan)(Side::sender), peer_timeout_ms),
            set((c.*plan)(Side::receiver), peer_timeout_ms), kMixedSizes),
        in(set((back.*plan)(Side::sender), peer_timeout_ms),
           set((back.*plan)(Side::receiver), peer_timeout_ms), kMixedSizes) {}

  static EndPlan set(EndPlan p, int peer_timeout_ms) {
    p.peer_timeout_ms = peer_timeout_ms;
    return p;
  }
  bool moving(Case& c) {
    return c.expect(out.wait_connected(c.limit(kConnect)) && in.wait_connected(c.limit(kConnect)) &&
                        out.wait_messages(20, c.limit(kMove)) &&
                        in.wait_messages(20, c.limit(kMove)),
                    describe());
  }
  std::string describe() {
    return out.describe(Side::sender) + "; " + out.describe(Side::receiver) +
           "; other way: " + in.describe(Side::sender) + "; " + in.describe(Side::receiver);
  }
  // Both directions move by ten messages more.
  bool more(int limit_ms) {
    const std::uint64_t a = out.messages() + 10, b = in.messages() + 10;
    return out.wait_messages(a, limit_ms) && in.wait_messages(b, limit_ms);
  }
  void end_well(Case& c, bool quiet) {
    c.expect_all_right(out, c.limit(kMove));
    back.expect_all_right(in, c.limit(kMove));
    for (Exchange* x : {&out, &in})
      for (const Side s : {Side::sender, Side::receiver})
        c.expect(!quiet || x->warnings(s).empty(), "unexpected warning: " + x->warnings(s));
    c.take(back);
  }

  const Topology there;
  Case back;
  Exchange out, in;
};

// Data goes on while no control packet passes, and afterwards.
void control_cut(Case& c, int ms) {
  Both both(c, &Case::default_plan);
  if (!both.moving(c)) return;
  Cut cut(c.topology.control);
  c.expect(cut.ok() && cut.felt("10.76.0.2"), "the control network cannot be cut");
  const std::int64_t end = now_ns() + ms * kMillisecond;
  rest_ms(ms - 500);
  const bool moves = both.more(c.limit(kMove));
  const bool during = now_ns() < end + kSecond;
  c.expect(moves, "no data while the control network is cut: " + both.describe());
  if (now_ns() < end) rest_ms(static_cast<int>((end - now_ns()) / kMillisecond));
  if (moves && during) c.note("data went on for " + seconds_text(ms) + " without control network");
  cut.mend();
  rest_ms(1500);  // what was kept for the peer arrives now
  c.expect(both.more(c.limit(kMove)),
           "no data after the control network came back: " + both.describe());
  both.end_well(c, true);
}

void control_cut_short(Case& c) { control_cut(c, 2500); }

// And a connection that has nothing to do meanwhile is as good as before.
void control_cut_long(Case& c) {
  Exchange idle(c.default_plan(Side::sender), c.default_plan(Side::receiver), kMixedSizes);
  c.expect(idle.wait_connected(c.limit(kConnect)) && idle.wait_messages(5, c.limit(kMove)),
           idle.describe(Side::sender));
  idle.pause(true);
  control_cut(c, long_run() ? 60000 : 14000);
  idle.pause(false);
  if (c.expect(idle.finish(c.limit(kMove)), "the idle connection: " + idle.describe(Side::sender) +
                                                "; " + idle.describe(Side::receiver)))
    c.note("the idle connection works");
}

// A connect whose first packets are lost takes as long as TWINPATH_CONNECT_TIMEOUT_MS says.
void syn_lost(Case& c) {
  Cut cut(c.topology.control);
  c.expect(cut.ok() && cut.felt("10.76.0.2"), "the control network cannot be cut");
  Exchange x(c.default_plan(Side::sender), c.default_plan(Side::receiver), kMixedSizes);
  for (int i = 0; i < c.limit(kConnect) && !x.handle_ready(); ++i) rest_ms(1);
  rest_ms(6000);
  c.expect(x.phase(Side::sender) == Phase::starting, x.describe(Side::sender));
  cut.mend();
  const bool moving = x.wait_connected(c.limit(kConnect)) && x.wait_messages(20, c.limit(kMove));
  if (!c.expect(moving, x.describe(Side::sender) + "; " + x.describe(Side::receiver))) return;
  c.note("connected after 6 s without control network");
  c.expect_all_right(x, c.limit(kMove));
}

// Both ends learn within the retries, and say where.
void data_cut(Case& c) {
  Both both(c, &Case::plan);
  if (!both.moving(c)) return;
  {
    const std::int64_t begin = now_ns();
    Cut cut(c.topology.of(*c.topology.here).netdev);
    c.expect(cut.ok() && cut.felt(c.topology.of(other(*c.topology.here)).address),
             "the data network cannot be cut");
    for (const Side s : {Side::sender, Side::receiver}) {
      c.expect_error(both.out, s, c.limit(kDetect), begin, kGone);
      both.back.expect_error(both.in, s, c.limit(kDetect), begin, kGone);
    }
    c.take(both.back);
  }
  c.expect_reconnection(both.out);
  c.expect_fresh_connection();
}

// Neither network: each end has to find out by itself, and says with what it lost touch.
void both_cut(Case& c) {
  Both both(c, &Case::plan, 8000);
  if (!both.moving(c)) return;
  const Side here = *c.topology.here;
  {
    const std::int64_t begin = now_ns();
    Cut control(c.topology.control), data(c.topology.of(here).netdev);
    c.expect(control.ok() && control.felt("10.76.0.2") && data.ok() &&
                 data.felt(c.topology.of(other(here)).address),
             "the networks cannot be cut");
    for (const Side s : {Side::sender, Side::receiver}) {
      c.expect_error(both.out, s, c.limit(kDetect), begin, kGone);
      both.back.expect_error(both.in, s, c.limit(kDetect), begin, kGone);
    }
    c.take(both.back);
  }
  c.expect_reconnection(both.out);
}

// Live migration, a debugger on the hypervisor: the machine stands still and goes on.
void machine_stopped(Case& c) {
  const int seconds = long_run() ? 30 : 4;
  Both both(c, &Case::default_plan);
  if (!both.moving(c)) return;
  const std::int64_t begin = now_ns();
  if (!c.expect(stop_machine("b", seconds), "the machine cannot be stopped")) return;
  rest_ms(seconds * 1000 + 1000);
  c.expect(both.more(c.limit(kMove)),
           "nothing moves after the machine went on: " + both.describe());
  c.note("both go on " + std::to_string((now_ns() - begin) / kMillisecond) + " ms after the stop");
  both.end_well(c, true);
  c.expect(c.pause_ms() > 1000.0 * (seconds - 1), "the machine was not stopped");
}

// Its power goes: no FIN, no RST, and nobody who answers.  The last case: it does not come back.
void machine_killed(Case& c) {
  Both both(c, &Case::plan, 4000);
  if (!both.moving(c)) return;
  const std::int64_t begin = now_ns();
  const UniqueFd killer = start_there("exec >/proc/sysrq-trigger; echo b", c.limit(kDetect));
  // What is left here: the sender of one connection, the receiver of the other.
  c.expect_error(both.out, Side::sender, c.limit(kDetect), begin, kGone);
  both.back.expect_error(both.in, Side::receiver, c.limit(kDetect), begin, kGone);
  c.take(both.back);
  c.expect(!run_there("true", 1000), "the machine lives on");
}

}  // namespace

const std::vector<CaseInfo>& host_cases() {
  static const std::vector<CaseInfo> cases{
      {"control-cut-short", "no control network for 2.5 s, with traffic", control_cut_short, 1,
       true},
      {"control-cut", "no control network for 14 s (60 s in long runs), with traffic",
       control_cut_long, 1, true},
      {"syn-lost", "no control network for the first 6 s of a connect", syn_lost, 1, true},
      {"data-cut", "no data network", data_cut, 1, true},
      {"both-cut", "neither a control nor a data network", both_cut, 1, true},
      {"mtu-hosts", "the smaller MTU at either machine", mtu_hosts, 1, true, true},
      {"gid-foreign", "an address of another network first in the GID table", gid_foreign, 1, true,
       true},
      {"gid-same", "the same foreign address first in both GID tables", gid_same, 1, true},
      {"nothing-left", "what a killed process and all before it left in the kernels", nothing_left,
       1, true},
      {"machine-stopped", "the other machine stands still for 4 s (30 s in long runs)",
       machine_stopped, 1, true},
      {"machine-killed", "the other machine is gone without a word", machine_killed, 1, true}};
  return cases;
}

}  // namespace twinpath::test
