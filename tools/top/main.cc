// twinpath-top: which peer, which rail and which cause each process of this host waits for.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "plugin/base/version.h"
#include "tools/common/arguments.h"
#include "tools/common/circumstances.h"
#include "tools/common/output.h"
#include "tools/counters/find.h"
#include "tools/counters/show.h"

namespace {

using namespace twinpath;
using namespace twinpath::tools;

constexpr const char* kExamples =
    R"(The first line names who holds things up: a peer, a rail, or the process's own
limits.  Rows are one per process, peer and direction, the longest wait first:
  waits %      of the time since the last look; mostly for what, of: peer's
               clear-to-send (a sender has nowhere to write to: the peer or its
               GPU is late), peer's data (a receiver has offered buffers),
               network (posted and not acknowledged), flush, GPU copy (through
               host memory), free slots (all requests of the connections in use)
  as rank      the communicator's name, its rank of how many in it; only where
               NCCL told (2.28 on)
  asked        requests that wait now;  stalled: for how long none of them has
               moved
  p50, p99     of messages sent, from posting to acknowledgement (one in 32, of
               small ones in 512)
Lines between the first and the table tell of ports that are down, of rails that
get too little, and of what the kernel has counted meanwhile at their ports
(retransmissions, bad links), and of GIN. Only processes of the same user are
seen; root sees all.

Examples:
  twinpath-top                     every second, until interrupted
  twinpath-top --once              one look over one second
  twinpath-top --once --json | jq -r .first_line
  twinpath-top --once --interval 0       since each connection's beginning
  twinpath-top --post-mortem twinpath-node07-4711.counters

Exit status: 0 all right, 1 nothing to look at, or a file that cannot be read, 2
bad arguments.)";

struct Options {
  bool once = false, json = false;
  int pid = 0;
  double interval = 1;
  std::size_t rows = 40;
  std::string post_mortem;
  std::string sysfs = "/sys";
};

struct Look {
  std::vector<ProcessSample> processes;
  std::vector<NicCounter> nics;
};

Look look(const Options& o, std::vector<std::string>& notes) {
  Look out;
  read_processes(
      o.pid, notes, [&](ProcessSample p) { out.processes.push_back(std::move(p)); }, kKeptLimits);
  out.nics = nic_counters(o.sysfs);
  return out;
}

// `below`: lines that will follow.
void show(const Options& o, const Summary& s, const nlohmann::json& options, std::size_t below) {
  if (o.json) {
    nlohmann::json all = json_envelope("twinpath-top", options, nullptr, kTopSchema);
    all.erase("results");
    all.update(summary_json(s));
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    Screen screen = screen_of(STDOUT_FILENO);
    if (screen.lines > below) screen.lines -= below;
    print_summary(stdout, s, o.rows, screen);
  }
  std::fflush(stdout);
}

int post_mortem(const Options& o, const nlohmann::json& options) {
  std::string why;
  const auto view = CounterView::of_file(o.post_mortem, why);
  if (view == nullptr) {
    std::fprintf(stderr, "twinpath-top: %s: %s\n", o.post_mortem.c_str(), why.c_str());
    return 1;
  }
  ProcessSample p = view->read();
  p.pid = p.inner_pid;
  show(o, summarize({}, {std::move(p)}), options, 0);
  return 0;
}

int live(const Options& o, const nlohmann::json& options) {
  std::vector<std::string> notes;
  Look before;
  if (o.interval > 0) before = look(o, notes);
  for (;;) {
    std::this_thread::sleep_for(std::chrono::duration<double>(o.interval));
    notes.clear();
    Look now = look(o, notes);
    const Summary s =
        summarize(before.processes, now.processes, nic_changes(before.nics, now.nics));
    // A new picture over the old one.
    if (!o.once && !o.json && ::isatty(STDOUT_FILENO) == 1) std::printf("\033[H\033[2J");
    show(o, s, options, notes.size());
    for (const std::string& note : notes) std::fprintf(stderr, "twinpath-top: %s\n", note.c_str());
    if (o.once) return s.processes.empty() ? 1 : 0;
    if (std::ferror(stdout) != 0) return 1;
    before = std::move(now);
  }
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app{"twinpath-top: which peer, rail and cause the processes of this host wait for\n",
               "twinpath-top"};
  set_form(app);
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("twinpath-top ") + built_from());
  app.add_flag("--once", o.once, "one look, then end");
  app.add_flag("--json", o.json, "one JSON document a look");
  app.add_option("--pid", o.pid, "PID: that process alone")->check(is_whole(1, 1 << 30));
  app.add_option("--interval", o.interval, "SECONDS from one look to the next [1]; 0 only --once")
      ->check(is_between(0, 3600));
  app.add_option("--rows", o.rows, "rows to show [40]; 0: all")->check(is_whole(0, 1000000));
  app.add_option("--sysfs", o.sysfs, "FOLDER to read adapters' counters from [/sys]")
      ->check(is_folder());
  app.add_option("--post-mortem", o.post_mortem,
                 "FILE that a process left behind (TWINPATH_METRICS_DIR)");
  try {
    app.parse(argc, argv);
    if (o.interval <= 0 && !o.once) throw CLI::ValidationError("--interval 0 needs --once", 2);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const nlohmann::json options{{"once", o.once}, {"pid", o.pid}, {"interval", o.interval}};
  return o.post_mortem.empty() ? live(o, options) : post_mortem(o, options);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tool("twinpath-top", 1, [&] { return run(argc, argv); });
}
