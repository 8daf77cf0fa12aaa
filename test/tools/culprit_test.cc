// Whom the first line of twinpath-top names, and what the kernel's counters add to it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "test/support/catch.h"
#include "test/tools/counter_samples.h"
#include "tools/counters/nics.h"
#include "tools/counters/show.h"
#include "tools/counters/summary.h"

namespace twinpath::tools {
namespace {

using counters::Role;
using counters::Wait;
using test::process;
using test::shown;
using test::waits;

std::string first_line(std::vector<ProcessSample> processes, std::vector<NicChange> nics = {}) {
  return summarize({}, std::move(processes), std::move(nics)).first_line;
}

std::string culprit_of(std::vector<ProcessSample> processes, std::vector<NicChange> nics = {}) {
  const Summary s = summarize({}, std::move(processes), std::move(nics));
  return s.culprit ? s.culprit->text.substr(0, s.culprit->text.find(':')) : "nobody";
}

NicChange change(const std::string& hca, NicTrouble trouble, std::uint64_t grown) {
  return {{hca, "1", "packet_seq_err", trouble, 1000}, grown};
}

ProcessSample with_port(const std::string& host, int pid) {
  ProcessSample p = process(host, pid);
  p.ports.push_back({"mlx5_0", "mlx5_0", 1, 400'000, counters::PortState::up, 0, 0, 0, 0});
  return p;
}

// A folder as sysfs, for as long as it lives.
class Sysfs {
 public:
  Sysfs() {
    std::string name = std::filesystem::temp_directory_path() / "twinpath-sysfs-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;
  ~Sysfs() { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ / "class/infiniband" / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  std::string root() const { return root_; }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_CASE("The first line names the one who waits for nobody") {
  // 1 waits for 2, which waits for 3, which does not wait.
  ProcessSample one = process("a", 1), two = process("a", 2), three = process("a", 3);
  waits(one, Role::sender, "a", 2, Wait::peer_cts, 0.95);
  waits(two, Role::sender, "a", 3, Wait::peer_cts, 0.9);
  CHECK(culprit_of({one, two, three}) == "a pid 3 is late");
  // Seen from one process alone it is the next one.
  CHECK(culprit_of({one}) == "a pid 2 is late");

  // The receiver waits for data because the sender's rail is slow.
  ProcessSample sender = process("a", 4), receiver = process("a", 5);
  waits(sender, Role::sender, "a", 5, Wait::network, 0.6);
  waits(receiver, Role::receiver, "a", 4, Wait::peer_data, 0.99);
  CHECK(culprit_of({sender, receiver}) == "rail mlx5_0 is the limit");
  // The sender does not wait: it is late itself.
  CHECK(culprit_of({process("a", 4), receiver}) == "a pid 4 is late");

  ProcessSample copies = process("a", 6);
  waits(copies, Role::sender, "b", 7, Wait::gpu_copy, 0.3);
  CHECK(culprit_of({copies}) == "copies through host memory are slow");
  ProcessSample calm = process("a", 8);
  waits(calm, Role::sender, "b", 9, Wait::network, 0.05);
  CHECK(culprit_of({calm}) == "nobody");
}

TEST_CASE("Of equal ranks that wait for each other none is late") {
  // Two ranks at full speed, each of which waits for data half of the time.
  ProcessSample a = process("a", 1), b = process("a", 2);
  waits(a, Role::receiver, "a", 2, Wait::peer_data, 0.52);
  waits(b, Role::receiver, "a", 1, Wait::peer_data, 0.47);
  CHECK(first_line({a, b}) ==
        "no rank is late alone: a pid 1 waits 52% of the time for a pid 2, which waits 47% itself");
  CHECK(culprit_of({a, b}) == "nobody");
  // A ring of three.
  ProcessSample c = process("a", 3), d = process("a", 4), e = process("a", 5);
  waits(c, Role::receiver, "a", 4, Wait::peer_data, 0.5);
  waits(d, Role::receiver, "a", 5, Wait::peer_data, 0.5);
  waits(e, Role::receiver, "a", 3, Wait::peer_data, 0.5);
  CHECK(culprit_of({c, d, e}) == "nobody");
  // One of two waits much less: it is the late one, of three as of two.
  b.connections[0].waited_ns[static_cast<std::size_t>(Wait::peer_data)] = kSecond;
  CHECK(culprit_of({a, b}) == "a pid 2 is late");
  e.connections[0].waited_ns[static_cast<std::size_t>(Wait::peer_data)] = kSecond;
  CHECK(culprit_of({c, d, e}) == "a pid 5 is late");
  // Both wait for ever: their collectives do not fit together.
  ProcessSample f = process("a", 6), g = process("a", 7);
  waits(f, Role::receiver, "a", 7, Wait::peer_data, 1);
  waits(g, Role::sender, "a", 6, Wait::peer_cts, 1);
  f.connections[0].looked_at = f.taken_at;
  f.connections[0].since = f.taken_at - 12 * kSecond;
  CHECK(first_line({f, g}) ==
        "no rank is late alone: a pid 6 waits 100% of the time for a pid 7, "
        "which waits 100% itself; nothing has moved for 12 s");
}

TEST_CASE("A peer that is not looked at is called late for certain only where it must be") {
  for (const auto& [share, words] : {std::pair{0.5, "b pid 9 may be late"},
                                     {0.74, "b pid 9 may be late"},
                                     {0.76, "b pid 9 is late"}})
    for (const Wait wait : {Wait::peer_data, Wait::peer_cts}) {
      CAPTURE(share);
      ProcessSample p = process("a", 1);
      waits(p, Role::receiver, "b", 9, wait, share);
      CHECK(culprit_of({p}) == words);
    }
}

TEST_CASE("Retransmissions of a rail's port tell a lossy link from a slow one") {
  ProcessSample sender = with_port("a", 1);
  waits(sender, Role::sender, "b", 2, Wait::network, 0.6);
  const auto of = [&](const NicChange& n) { return culprit_of({sender}, {n}); };
  CHECK(of(change("mlx5_0", NicTrouble::retransmission, 40)) == "rail mlx5_0 loses packets");
  CHECK(first_line({sender}, {change("mlx5_0", NicTrouble::retransmission, 40)}) ==
        "rail mlx5_0 loses packets: a pid 1 waits 60% of the time for what it sends to b pid 2; in "
        "10.0 s its port sent again: packet_seq_err 40");
  // Another adapter's, another kind, and what happens now and then, say nothing.
  CHECK(of(change("mlx5_1", NicTrouble::retransmission, 40)) == "rail mlx5_0 is the limit");
  CHECK(of(change("mlx5_0", NicTrouble::out_of_sequence, 40)) == "rail mlx5_0 is the limit");
  CHECK(of(change("mlx5_0", NicTrouble::congestion, 40)) == "rail mlx5_0 is the limit");
  CHECK(of(change("mlx5_0", NicTrouble::retransmission, 9)) == "rail mlx5_0 is the limit");
  CHECK(of(change("mlx5_0", NicTrouble::retransmission, 10)) == "rail mlx5_0 loses packets");

  // Of a sender on another host the receiver's port tells.
  ProcessSample receiver = with_port("b", 2);
  waits(receiver, Role::receiver, "a", 1, Wait::peer_data, 0.9);
  const NicChange gaps = change("mlx5_0", NicTrouble::out_of_sequence, 40);
  CHECK(culprit_of({receiver}, {gaps}) == "rail mlx5_0 loses packets");
  CHECK(summarize({}, {receiver}, {gaps}).culprit->packets_lost);
  CHECK(culprit_of({receiver}) == "a pid 1 is late");
  // A sender that is looked at and waits for nothing itself: its port knows, the receiver's does
  // not.
  ProcessSample busy = with_port("a", 1);
  waits(busy, Role::sender, "b", 2, Wait::network, 0.01);
  busy.ports[0].device = "mlx5_7";
  CHECK(culprit_of({busy, receiver}, {gaps}) == "a pid 1 is late");
  CHECK(culprit_of({busy, receiver}, {change("mlx5_7", NicTrouble::retransmission, 40)}) ==
        "rail mlx5_0 loses packets");
  // With both in sight and both waiting the sender's rail is named.
  CHECK(culprit_of({sender, receiver}, {gaps, change("mlx5_0", NicTrouble::retransmission, 40)}) ==
        "rail mlx5_0 loses packets");
}

TEST_CASE("A rail is slow where the job's others are quicker with messages as large") {
  const auto timed = [](ProcessSample& p, const std::string& port, std::uint64_t ns,
                        std::uint64_t bytes) {
    ConnectionSample& c = p.connections.back();
    c.rails[0].port = port;
    c.rails[0].buckets[counters::bucket_of(ns)] = 10;
    c.rails[0].bytes = 1000 * bytes;
    c.messages = 1000;
  };
  // The first process is of job 7, where jobs are known.
  for (const auto& [other_ns, other_bytes, other_job, words] :
       {std::tuple{100'000u, 65536u, 0u, "rail mlx5_0 is slow"},
        {100'000u, 65536u, 7u, "rail mlx5_0 is slow"},
        {100'000u, 65536u, 8u, "rail mlx5_0 is the limit"},
        {100'000u, 40000u, 0u, "rail mlx5_0 is slow"},
        {100'000u, 8u, 7u, "rail mlx5_0 is the limit"},
        {9'000'000u, 65536u, 7u, "rail mlx5_0 is the limit"}}) {
    CAPTURE(other_ns, other_bytes, other_job);
    ProcessSample p = process("a", 1), other = process("a", 3), far = process("c", 4);
    waits(p, Role::sender, "b", 2, Wait::network, 0.6);
    timed(p, "mlx5_0", 10'000'000, 65536);
    waits(other, Role::sender, "b", 4, Wait::network, 0.2);
    timed(other, "mlx5_1", other_ns, other_bytes);
    p.connections[0].communicator = 7;
    other.connections[0].communicator = other_job;
    // Another host's rails are no measure.
    waits(far, Role::sender, "b", 5, Wait::network, 0.2);
    timed(far, "mlx5_1", 10'000, 65536);
    CHECK(culprit_of({p, other, far}) == words);
  }
  // Of rails that share messages the one that gets little of them.
  ProcessSample p = with_port("a", 1);
  p.ports.push_back({"mlx5_1", "mlx5_1", 1, 400'000, counters::PortState::up, 0, 0, 0, 0});
  waits(p, Role::sender, "b", 2, Wait::network, 0.6);
  p.connections[0].rails.emplace_back().port = "mlx5_1";
  p.connections[0].rails[0].permille = 910;
  p.connections[0].rails[1].permille = 90;
  CHECK(
      first_line({p}) ==
      "rail mlx5_1 is slow: a pid 1 waits 60% of the time for what it sends to b pid 2; it gets 9% "
      "of each message, by its port's speed 50%");
}

TEST_CASE("Of several rails that one is named whose port sends again") {
  ProcessSample p = with_port("a", 1);
  p.ports.push_back({"mlx5_1", "mlx5_1", 1, 400'000, counters::PortState::up, 0, 0, 0, 0});
  waits(p, Role::sender, "b", 2, Wait::network, 0.6);
  p.connections[0].rails.emplace_back().port = "mlx5_1";
  CHECK(culprit_of({p}, {change("mlx5_0", NicTrouble::retransmission, 12),
                         change("mlx5_1", NicTrouble::retransmission, 400)}) ==
        "rail mlx5_1 loses packets");
}

TEST_CASE("The kernel's counters are read from sysfs, whatever lies there") {
  const Sysfs sysfs;
  CHECK(nic_counters(sysfs.root()).empty());
  sysfs.write("mlx5_1/ports/1/hw_counters/packet_seq_err", "7");
  sysfs.write("mlx5_1/ports/1/hw_counters/lifespan", "12");
  sysfs.write("mlx5_0/ports/2/counters/symbol_error", "18446744073709551615");
  sysfs.write("mlx5_0/ports/2/counters/link_downed", "N/A (no PMA)");
  sysfs.write("mlx5_0/ports/2/hw_counters/out_of_buffer/nonsense", "1");
  const std::string fifo =
      sysfs.root() + "/class/infiniband/mlx5_0/ports/2/counters/port_xmit_wait";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  // In both folders of one port.
  sysfs.write("mlx5_0/ports/1/counters/link_downed", "3");
  sysfs.write("mlx5_0/ports/1/hw_counters/link_downed", "3");
  const std::vector<NicCounter> before = nic_counters(sysfs.root());
  REQUIRE(before.size() == 3);
  CHECK(before[0].hca == "mlx5_0");
  CHECK(before[0].name == "link_downed");
  CHECK(before[1].port == "2");
  CHECK(before[1].value == 18446744073709551615u);
  CHECK(before[2].hca == "mlx5_1");
  CHECK(before[2].trouble == NicTrouble::retransmission);

  sysfs.write("mlx5_1/ports/1/hw_counters/packet_seq_err", "12");
  sysfs.write("mlx5_0/ports/2/counters/symbol_error", "1");  // set back
  sysfs.write("mlx5_2/ports/1/counters/symbol_error", "9");  // new
  const std::vector<NicChange> changes = nic_changes(before, nic_counters(sysfs.root()));
  REQUIRE(changes.size() == 4);
  CHECK(changes[0].grown == 0);
  CHECK(changes[1].grown == 0);
  CHECK(changes[2].grown == 5);
  CHECK(changes[3].grown == 0);
}

TEST_CASE("A screen shows the first line, whatever else it has room for") {
  std::vector<ProcessSample> processes;
  for (int pid = 100; pid < 130; ++pid) {
    processes.push_back(with_port("a-host-with-a-long-name", pid));
    processes.back().ports[0].state = counters::PortState::down;
    waits(processes.back(), Role::sender, "b", 7, Wait::network, 0.3);
    waits(processes.back(), Role::receiver, "b", 7, Wait::peer_data, 0.4);
  }
  const Summary s = summarize({}, processes);
  REQUIRE(s.rows.size() == 60);
  REQUIRE(s.first_line.size() > 60);
  const std::string begin = s.first_line.substr(0, 10);
  struct Row {
    Screen screen;
    std::size_t most, least_rows;  // rows that must be seen
  };
  for (const Row& row : {Row{{80, 24}, 40, 8}, Row{{80, 24}, 0, 8}, Row{{200, 50}, 40, 25},
                         Row{{60, 10}, 40, 1}, Row{{80, 24}, 2, 2}, Row{{20, 5}, 40, 0},
                         Row{{80, 1}, 40, 0}, Row{{0, 0}, 40, 40}, Row{{0, 0}, 0, 60}}) {
    INFO(row.screen.columns << "x" << row.screen.lines << ", " << row.most << " rows");
    const auto lines = shown(s, row.most, row.screen);
    CHECK(lines.front().substr(0, 10) == begin);
    if (row.screen.lines > 8) CHECK(lines.size() < row.screen.lines);  // the cursor has one
    if (row.screen.columns != 0)
      for (const std::string& line : lines)
        if (line.find(' ') != std::string::npos) CHECK(line.size() <= row.screen.columns);
    std::size_t rows = 0;
    for (const std::string& line : lines)
      if (line.find(" from ") != std::string::npos || line.find(" to ") != std::string::npos)
        rows += line.find("b pid 7") != std::string::npos ? 1 : 0;
    CHECK(rows >= row.least_rows);
    // Who waits for what stays when columns have to go.
    if (row.least_rows > 0 && row.screen.columns >= 80)
      CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
        return line.find("mostly for") != std::string::npos;
      }));
  }
  CHECK(shown(s, 0, {})[1] == "port mlx5_0 of pid 100 is down");
}

}  // namespace twinpath::tools
