// conns: how long n connections take and what one idle connection costs in memory, at the
// sender and at the receiver.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "plugin/base/clock.h"
#include "tools/net_perf/stream.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Figures {
  std::int64_t begin = 0, end = 0, grown = 0, closed = 0;
  std::uint64_t wrong = 0;
};

// Sends 3 messages over each connection, verified: an idle connection must still work.
std::uint64_t use_all(Endpoint& e, int n) {
  Shape shape;
  shape.size = 64;
  shape.connections = n;
  shape.salt = 77;
  Buffer buffer(shape.buffer_bytes(), nullptr, false);
  const bool sender = e.rank % 2 == 0;
  const std::vector<void*>& comms = sender ? e.sends : e.receives;
  const std::vector<void*> memories = e.register_on(comms, buffer);
  SendStream out(e, shape, buffer, memories);
  RecvStream in(e, shape, buffer, memories);
  if (sender)
    out.start(3, Check::full);
  else
    in.start(3, Check::full);
  while (!out.done() || !in.done()) {
    const bool moved = sender ? out.step() : in.step();
    if (!moved) e.idle();
  }
  e.pair_barrier();
  e.deregister(comms, memories);
  if (in.wrong() != 0) e.reporter.result({{"wrong_detail", "conns: " + in.first_wrong()}});
  return in.wrong();
}

}  // namespace

void run_connections(Endpoint& e) {
  const bool sender = e.rank % 2 == 0;
  e.reporter.phase("first connection");  // pays for what the process needs once
  e.connect(sender ? 1 : 0, sender ? 0 : 1);
  e.pair_barrier();
  e.close_connections();
  const std::vector<int>& counts = e.options.connections;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const int n = counts[i];
    e.reporter.fraction(static_cast<double>(i) / static_cast<double>(counts.size()));
    e.reporter.phase("open " + std::to_string(n) + " connections");
    if (e.options.workers > 2) e.reporter.barrier(e.deadline_ns);
    e.pair_barrier();
    Figures mine;
    const std::int64_t before = resident_bytes();
    mine.begin = now_ns();
    e.connect(sender ? n : 0, sender ? 0 : n);
    mine.end = now_ns();
    mine.grown = resident_bytes() - before;
    e.pair_barrier();
    if (e.options.verify) {
      e.reporter.phase("use " + std::to_string(n) + " connections");
      mine.wrong = use_all(e, n);
    }
    e.reporter.phase("close " + std::to_string(n) + " connections");
    e.pair_barrier();
    const std::int64_t close_begin = now_ns();
    e.close_connections();
    mine.closed = now_ns() - close_begin;
    const std::int64_t ahead = e.peer_clock_ahead();
    Figures theirs = e.exchange(mine);
    theirs.begin -= ahead;
    theirs.end -= ahead;
    if (!sender) continue;
    e.reporter.result(
        {{"connections", n},
         {"open_ns", std::max(mine.end, theirs.end) - std::min(mine.begin, theirs.begin)},
         {"close_ns", std::max(mine.closed, theirs.closed)},
         {"send_bytes", mine.grown},
         {"recv_bytes", theirs.grown},
         {"wrong", mine.wrong + theirs.wrong}});
  }
}

}  // namespace twinpath::tools
