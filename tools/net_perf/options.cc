#include "tools/net_perf/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "plugin/base/version.h"
#include "tools/common/arguments.h"
#include "tools/common/failure.h"
#include "tools/common/net_plugin.h"
#include "tools/common/units.h"
#include "tools/net_perf/help.h"

namespace twinpath::tools {
namespace {

constexpr int kMostWorkers = 4096;
constexpr std::size_t kLargest = std::size_t{1} << 30;  // test() reports sizes as int

// What --test and --loop mean for options that were not given.
void choose_defaults(Options& o, bool group_given, bool connections_given) {
  const bool all_grouped = o.test == Test::group || o.loop == LoopKind::group;
  if (all_grouped && !group_given) o.group = 8;
  if (o.test == Test::step && !connections_given) o.connections = {4};
  if (o.window_given) return;
  if (o.loop == LoopKind::one || o.loop == LoopKind::group)
    o.window = 1;
  else if (o.test == Test::step)
    o.window = 8;
  else if (o.test == Test::callgrind && o.loop == LoopKind::window)
    o.window = 1;
}

std::string complain_of_comparison(const Options& o);

// What CLI11's own checks cannot say; empty when all is well.
std::string complain(const Options& o) {
  for (const std::size_t s : o.sizes)
    if (s > kLargest) return "size " + format_bytes(s) + " is too large; at most 1g";
  if (o.connections.size() > 1 && o.test != Test::conns)
    return "a list of --connections is for --test conns";
  if (o.loop != LoopKind::window && (o.test == Test::latency || o.test == Test::conns))
    return std::string("--loop is not for --test ") + test_name(o.test);
  if (o.loop == LoopKind::one && (o.group != 1 || o.window != 1))
    return "--loop one moves one message at a time: no --group, no --window";
  if (o.loop == LoopKind::group && o.window != 1)
    return "--loop group moves one group at a time: no --window";
  if (o.loop != LoopKind::window && o.optional_recv) return "--optional-recv is for --loop window";
  if (o.dmabuf && o.gpus.empty()) return "--dmabuf needs --gpu";
  if (o.histogram && o.test != Test::latency) return "--histogram is for --test latency";
  if (!o.plot.empty() && o.test == Test::callgrind) return "--plot is not for --test callgrind";
  return complain_of_comparison(o);
}

// Two plugins in one process would share what libraries have one of.
std::string complain_of_comparison(const Options& o) {
  if (o.against.empty()) return {};
  if (o.test == Test::solo || o.test == Test::callgrind)
    return std::string("--against is not for --test ") + test_name(o.test) +
           ", which is one process; run it once for each plugin";
  if (o.threads) return "--against needs a process for each worker: leave out --threads";
  if (o.histogram) return "--histogram is of one plugin; leave out --against, or use --json";
  // A bare name is the loader's to find.
  if (o.against.find('/') != std::string::npos && access(o.against.c_str(), R_OK) != 0)
    return "--against " + o.against + ": " + std::strerror(errno) +
           "; give the path of the other plugin's libnccl-net.so";
  return {};
}

}  // namespace

bool parse_options(int argc, char** argv, Options& out, int& exit_code) {
  CLI::App app{"net_perf: latency, bandwidth and message rate of any NCCL net plugin\n",
               "net_perf"};
  set_form(app);
  app.footer(kHelpFooter);
  app.set_version_flag("--version", std::string("net_perf ") + built_from());
  std::string sizes, begin, end, poll = "auto", memory = "vmm", abi, test = "latency",
                                 loop = "window";
  std::size_t factor = 2;
  int processes = 0, threads = 0;
  app.add_option("--plugin", out.plugin,
                 "libnccl-net.so to test: a path, a file name, or the X of libnccl-net-X.so "
                 "[$NCCL_NET_PLUGIN, else the one built or installed with this program]");
  auto* against = app.add_option("--against", out.against,
                                 "another net plugin to compare with, named as for --plugin");
  app.add_option("--rounds", out.rounds, "of --against: times that each plugin has its turn [5]")
      ->needs(against)
      ->check(is_whole(2, 1000));
  app.add_option("--abi", abi, "net table to use: v8 .. v12 [newest, as NCCL does]");
  app.add_option("--test", test, "what to measure, see below [latency]");
  app.add_option("--sizes", sizes,
                 "message sizes in bytes, e.g. 8,64k,1m (k, m, g: powers of 1024)");
  app.add_option("-b,--begin", begin, "first size of a range, bytes");
  app.add_option("-e,--end", end, "last size of a range, bytes");
  app.add_option("-f,--factor", factor, "from one size of the range to the next [2]")
      ->check(is_whole(2, 1024));
  app.add_option("--iters", out.iters, "messages per repetition [by size: about 256 MiB]")
      ->check(is_whole(1, 100000000));
  auto* warmup =
      app.add_option("--warmup", out.warmup, "messages before measuring [a tenth of --iters]")
          ->check(is_whole(0, 100000000));
  auto* repeats =
      app.add_option("--repeats", out.repeats,
                     "repetitions; median and p99 are over these [10; 3 with --against]")
          ->check(is_whole(1, 10000));
  auto* window = app.add_option("--window", out.window,
                                "messages (or groups) in flight per connection [16; 8 for "
                                "step, 1 for callgrind; less when buffers would exceed 256 MiB]");
  window->check(is_whole(1, 1024));
  auto* connections = app.add_option("--connections", out.connections,
                                     "connections per pair [1; 4 for step]; a list for conns");
  connections->delimiter(',')->check(is_whole(1, 1000000));
  auto* group = app.add_option("--group", out.group,
                               "receives per irecv, 1..8 [1; 8 for --test group, --loop group]");
  group->check(is_whole(1, 8));
  app.add_option("--loop", loop, "how messages are posted and tested, see below [window]");
  auto* p = app.add_option("--processes", processes, "processes, an even number [2]")
                ->check(is_even(2, kMostWorkers));
  app.add_option("--threads", threads, "threads of one process instead of processes")
      ->check(is_even(2, kMostWorkers))
      ->excludes(p);
  app.add_option(
         "--dev", out.devices,
         "device index or name, a+b merges two into one; a list goes round over workers [0]")
      ->delimiter(',');
  app.add_option("--gpu", out.gpus, "CUDA buffers on these GPUs, round over workers, e.g. 0,1")
      ->delimiter(',')
      ->check(is_whole(0, 127));
  app.add_option("--gpu-memory", memory, "vmm (cuMemCreate) or malloc (cuMemAlloc) [vmm]")
      ->check(CLI::IsMember({"vmm", "malloc"}));
  app.add_flag("--dmabuf", out.dmabuf, "register GPU memory by dma-buf");
  app.add_flag("--verify,!--no-verify", out.verify, "check payloads [on]");
  app.add_flag("--optional-recv", out.optional_recv,
               "receives that need no completion (NCCL's LL protocols)");
  app.add_option("--poll", poll,
                 "between polls: spin, yield the core, or auto [yield when there "
                 "are as many workers as cores]")
      ->check(CLI::IsMember({"auto", "spin", "yield"}));
  app.add_option("--timeout", out.timeout_s, "seconds for the whole run [120]")
      ->check(is_between(0.1, 1e6));
  app.add_option("--rendezvous", out.rendezvous,
                 "HOST:PORT, or [IPv6]:PORT, of rank 0 of a job [$MASTER_ADDR:$MASTER_PORT]")
      ->check(is_host_port(1));
  app.add_option("--rank", out.place, "RANK/RANKS of this process in a job started by hand");
  app.add_flag("--no-mpi", out.no_mpi, "ignore an mpirun or Slurm environment");
  app.add_flag("--json", out.json, "one JSON document on stdout instead of the table");
  app.add_flag("--histogram", out.histogram, "latency: how often which time came, below the table");
  app.add_option("--plot", out.plot, "FILE.svg: the results as a picture")->check(ends_in(".svg"));
  app.add_flag("-v,--verbose", out.verbose, "show what the plugin logs");
  app.add_option("--worker", out.rank)->group("");  // the rest is between parent and workers
  app.add_option("--control-fd", out.control_fd)->group("");
  app.add_option("--said-fd", out.said_fd)->group("");
  app.add_option("--peer-fd", out.peer_fd)->group("");
  std::vector<int> job;
  app.add_option("--job", job)->expected(3)->group("");
  std::string turn_plugin;
  double turn_timeout = 0;
  app.add_option("--turn-plugin", turn_plugin)->group("");
  app.add_option("--turn-timeout", turn_timeout)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? 0 : 2;
    return false;
  }
  const auto refuse = [&](const std::string& why) {
    std::fprintf(stderr, "net_perf: %s\n", why.c_str());
    exit_code = 2;
    return false;
  };
  std::string why, known;
  bool found = false;
  for (const auto& [name, value] : test_names()) {
    known += (known.empty() ? "" : ", ") + name;
    if (name != test) continue;
    out.test = value;
    found = true;
  }
  if (!found) return refuse("no test '" + test + "'; there are " + known);
  found = false;
  for (const auto& [name, value] : loop_names()) {
    if (name != loop) continue;
    out.loop = value;
    found = true;
  }
  if (!found) return refuse("no loop '" + loop + "'; there are window, one, group, poll");
  if (!abi.empty()) {
    const std::string digits = abi[0] == 'v' ? abi.substr(1) : abi;
    int v = 0;
    const char* const stop = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), stop, v);
    if (read.ec != std::errc{} || read.ptr != stop || v < 8 || v > 12)
      return refuse("--abi " + abi + " is not known; give v8 to v12");
    out.abi = v;
  }
  if (!begin.empty() || !end.empty()) {
    if (!sizes.empty()) return refuse("give --sizes or a range (-b, -e, -f), not both");
    const auto b = parse_bytes(begin.empty() ? "8" : begin),
               e = parse_bytes(end.empty() ? "1m" : end);
    if (!b || !e) return refuse("-b and -e take sizes such as 8, 64k or 1m");
    if (*b > *e) return refuse("the range is empty: -b " + begin + " is above -e " + end);
    if (*b == 0) return refuse("a range cannot start at 0; use --sizes 0,8,...");
    out.sizes = size_steps(*b, *e, factor);
  } else if (!sizes.empty() && !parse_byte_list(sizes, out.sizes, why)) {
    return refuse("--sizes: " + why);
  }
  if (out.sizes.empty()) {
    const bool large = out.test == Test::bw || out.test == Test::bibw;
    if (large)
      out.sizes = size_steps(4096, std::size_t{4} << 20, 4);
    else if (out.test == Test::latency)
      out.sizes = {8, 64, 512, 4096, 32768, 262144};
    else if (out.test == Test::step)
      out.sizes = {std::size_t{128} << 10};
    else
      out.sizes = {8};
  }
  out.warmup_given = warmup->count() != 0;
  out.window_given = window->count() != 0;
  choose_defaults(out, group->count() != 0, connections->count() != 0);
  if (threads != 0) out.threads = true;
  out.workers = threads != 0 ? threads : processes != 0 ? processes : 2;
  out.vmm = memory == "vmm";
  const bool alone = out.test == Test::solo || out.test == Test::callgrind;  // one thread
  out.poll_chosen = poll != "auto";
  out.yield_every = poll == "yield"  ? 1
                    : poll == "spin" ? 0
                                     : yield_interval(alone ? 1 : out.workers);
  out.processes_given = processes != 0;
  if (!out.against.empty()) {
    out.against = find_plugin(out.against);
    if (repeats->count() == 0) out.repeats = 3;
  }
  if (why = complain(out); !why.empty()) return refuse(why);
  if (!job.empty()) take_job(out, job);
  out.plugin = turn_plugin.empty() ? find_plugin(out.plugin) : turn_plugin;
  if (turn_timeout > 0) out.timeout_s = turn_timeout;
  return true;
}

}  // namespace twinpath::tools
