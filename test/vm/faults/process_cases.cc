// Peers that are killed or stand still.
#include <csignal>

#include "test/vm/faults/case.h"

namespace twinpath::test {
namespace {

void killed(Case& c, Side side) {
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(30, kMove),
                x.describe(Side::sender) + "; " + x.describe(Side::receiver)))
    return;
  const std::int64_t begin = now_ns();
  x.signal(side, SIGKILL);
  c.expect_error(x, other(side), kDetect, begin, {"see the peer's own log", "its process died"});
}

void sender_killed(Case& c) { killed(c, Side::sender); }
void receiver_killed(Case& c) { killed(c, Side::receiver); }

// The peer dies before it has answered: a listener that nobody serves any more.
void killed_connecting(Case& c) {
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  // Stopped with its handle given out, so that the sender gets as far as waiting for the answer.
  for (int i = 0; i < kConnect && !x.handle_ready(); ++i) rest_ms(1);
  x.signal(Side::receiver, SIGSTOP);
  rest_ms(100);
  const std::int64_t killed_at = now_ns();
  x.signal(Side::receiver, SIGKILL);
  x.wait_ended(Side::sender, kDetect);
  if (!c.expect(x.phase(Side::sender) == Phase::failed || x.phase(Side::sender) == Phase::connected,
                "no error: " + x.describe(Side::sender)))
    return;
  c.detected(x, Side::sender, killed_at);
  c.said(x, Side::sender);
  const std::string text = x.warnings(Side::sender);
  for (const std::string& part :
       {c.topology.of(Side::sender).rdma + " GID index", c.topology.of(Side::sender).address,
        std::string("(port 1)"), std::string("127.0.0.1:")})
    c.expect(text.find(part) != std::string::npos, "the message lacks " + part + ": " + text);
  c.expect(text.find("has the peer's process ended") != std::string::npos ||
               text.find("look for its own error message") != std::string::npos,
           "the message lacks a remedy: " + text);
}

// Three seconds of silence are no error: a debugger, a swapped-out or frozen process.
void stopped(Case& c, Side side) {
  Exchange x(c.plan(Side::sender), c.plan(Side::receiver), kMixedSizes);
  if (!c.expect(x.wait_connected(kConnect) && x.wait_messages(30, kMove), x.describe(Side::sender)))
    return;
  x.signal(side, SIGSTOP);
  rest_ms(3000);
  const std::uint64_t before = x.messages();
  const std::int64_t begin = now_ns();
  x.signal(side, SIGCONT);
  c.expect(x.wait_messages(before + 10, kMove),
           "nothing moves after SIGCONT: " + x.describe(Side::sender) + "; " +
               x.describe(Side::receiver));
  c.note("goes on " + std::to_string((now_ns() - begin) / kMillisecond) + " ms after SIGCONT");
  c.expect_all_right(x, kMove);
  c.expect(c.pause_ms() > 2800, "the process was not stopped");
  for (Side s : {Side::sender, Side::receiver})
    c.expect(x.warnings(s).empty(), "unexpected warning: " + x.warnings(s));
}

void sender_stopped(Case& c) { stopped(c, Side::sender); }
void receiver_stopped(Case& c) { stopped(c, Side::receiver); }

}  // namespace

const std::vector<CaseInfo>& process_cases() {
  static const std::vector<CaseInfo> cases{
      {"receiver-killed", "the receiver is killed with -9", receiver_killed},
      {"sender-killed", "the sender is killed with -9", sender_killed},
      {"killed-connecting", "the receiver is killed before it answers", killed_connecting},
      {"receiver-stopped", "SIGSTOP of the receiver for 3 s", receiver_stopped},
      {"sender-stopped", "SIGSTOP of the sender for 3 s", sender_stopped}};
  return cases;
}

}  // namespace twinpath::test
