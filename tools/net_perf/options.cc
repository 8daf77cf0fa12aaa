#include "tools/net_perf/options.h"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "plugin/base/version.h"
#include "tools/common/failure.h"
#include "tools/common/net_plugin.h"
#include "tools/common/units.h"
#include "tools/net_perf/help.h"

namespace twinpath::tools {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  // test() reports sizes as int

const std::vector<std::pair<std::string, Test>>& test_names() {
  static const std::vector<std::pair<std::string, Test>> names{
      {"latency", Test::latency}, {"bw", Test::bw},       {"bibw", Test::bibw},
      {"rate", Test::rate},       {"group", Test::group}, {"step", Test::step},
      {"conns", Test::conns},     {"solo", Test::solo},   {"callgrind", Test::callgrind}};
  return names;
}

const std::vector<std::pair<std::string, LoopKind>>& loop_names() {
  static const std::vector<std::pair<std::string, LoopKind>> names{{"window", LoopKind::window},
                                                                   {"one", LoopKind::one},
                                                                   {"group", LoopKind::group},
                                                                   {"poll", LoopKind::poll}};
  return names;
}

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

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// What CLI11's own checks cannot say; empty when all is well.
std::string complain(const Options& o) {
  for (const std::size_t s : o.sizes)
    if (s > kLargest) return "size " + format_bytes(s) + " is too large; at most 1g";
  if (o.workers < 2 || o.workers % 2 != 0)
    return "the number of processes or threads must be even: they work in pairs";
  for (const int c : o.connections)
    if (c < 1) return "--connections must be at least 1";
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
  return {};
}

}  // namespace

const char* test_name(Test t) {
  for (const auto& [name, test] : test_names())
    if (test == t) return name.c_str();
  return "?";
}

const char* loop_name(LoopKind k) {
  for (const auto& [name, loop] : loop_names())
    if (loop == k) return name.c_str();
  return "?";
}

std::size_t iterations(const Options& o, std::size_t size) {
  if (o.iters != 0) return o.iters;
  const std::size_t most = o.test == Test::rate ? 50000 : o.test == Test::latency ? 10000 : 5000;
  const std::size_t bytes = std::size_t{256} << 20;
  return std::clamp<std::size_t>(bytes / std::max<std::size_t>(size, 1), 20, most);
}

bool parse_options(int argc, char** argv, Options& out, int& exit_code) {
  CLI::App app{"net_perf: latency, bandwidth and message rate of any NCCL net plugin\n",
               "net_perf"};
  app.footer(kHelpFooter);
  app.set_version_flag("--version", std::string("net_perf ") + built_from());
  std::string sizes, begin, end, poll = "auto", memory = "vmm", abi, test = "latency",
                                 loop = "window";
  std::size_t factor = 2;
  int processes = 0, threads = 0;
  app.add_option("--plugin", out.plugin,
                 "libnccl-net.so to test: a path, a file name, or the X of libnccl-net-X.so "
                 "[$NCCL_NET_PLUGIN, else the one built or installed with this program]");
  app.add_option("--abi", abi, "net table to use: v8 .. v12 [newest, as NCCL does]");
  app.add_option("--test", test, "what to measure, see below [latency]");
  app.add_option("--sizes", sizes,
                 "message sizes in bytes, e.g. 8,64k,1m (k, m, g: powers of 1024)");
  app.add_option("-b,--begin", begin, "first size of a range, bytes");
  app.add_option("-e,--end", end, "last size of a range, bytes");
  app.add_option("-f,--factor", factor, "from one size of the range to the next [2]")
      ->check(CLI::Range(2, 1024));
  app.add_option("--iters", out.iters, "messages per repetition [by size: about 256 MiB]")
      ->check(CLI::Range(1, 100000000));
  auto* warmup =
      app.add_option("--warmup", out.warmup, "messages before measuring [a tenth of --iters]");
  app.add_option("--repeats", out.repeats, "repetitions; median and p99 are over these [10]")
      ->check(CLI::Range(1, 10000));
  auto* window = app.add_option("--window", out.window,
                                "messages (or groups) in flight per connection [16; 8 for "
                                "step, 1 for callgrind; less when buffers would exceed 256 MiB]");
  window->check(CLI::Range(1, 1024));
  auto* connections = app.add_option("--connections", out.connections,
                                     "connections per pair [1; 4 for step]; a list for conns");
  connections->delimiter(',');
  auto* group = app.add_option("--group", out.group,
                               "receives per irecv, 1..8 [1; 8 for --test group, --loop group]");
  group->check(CLI::Range(1, 8));
  app.add_option("--loop", loop, "how messages are posted and tested, see below [window]");
  auto* p = app.add_option("--processes", processes, "processes, an even number [2]");
  app.add_option("--threads", threads, "threads of one process instead of processes")->excludes(p);
  app.add_option(
         "--dev", out.devices,
         "device index or name, a+b merges two into one; a list goes round over workers [0]")
      ->delimiter(',');
  app.add_option("--gpu", out.gpus, "CUDA buffers on these GPUs, round over workers, e.g. 0,1")
      ->delimiter(',')
      ->check(CLI::Range(0, 127));
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
      ->check(CLI::Range(0.1, 1e6));
  app.add_option("--rendezvous", out.rendezvous,
                 "HOST:PORT, or [IPv6]:PORT, of rank 0 of a job [$MASTER_ADDR:$MASTER_PORT]");
  app.add_option("--rank", out.place, "RANK/RANKS of this process in a job started by hand");
  app.add_flag("--no-mpi", out.no_mpi, "ignore an mpirun or Slurm environment");
  app.add_flag("--json", out.json, "one JSON document on stdout instead of the table");
  app.add_flag("-v,--verbose", out.verbose, "show what the plugin logs");
  app.add_option("--worker", out.rank)->group("");  // the rest is between parent and workers
  app.add_option("--control-fd", out.control_fd)->group("");
  app.add_option("--said-fd", out.said_fd)->group("");
  app.add_option("--peer-fd", out.peer_fd)->group("");
  std::vector<int> job;
  app.add_option("--job", job)->expected(3)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? 0 : 2;
    return false;
  }
  const auto refuse = [&](const std::string& why) {
    std::cerr << "net_perf: " << why << "\n";
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
    const auto v = parse_bytes(digits);
    if (!v || *v < 8 || *v > 12) return refuse("--abi " + abi + " is not known; give v8 to v12");
    out.abi = static_cast<int>(*v);
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
  if (why = complain(out); !why.empty()) return refuse(why);
  if (!job.empty()) take_job(out, job);
  out.plugin = find_plugin(out.plugin);
  return true;
}

// As many workers as cores leave none for the plugin's own threads: yield now and then.
unsigned yield_interval(int busy) {
  const int cores = usable_cores();
  return busy > cores ? 1 : busy == cores ? 16 : 0;
}

void take_job(Options& o, const std::vector<int>& job) {
  const std::string ranks = std::to_string(job[0]);
  if (job[0] % 2 != 0)
    throw BadUsage("a job of " + ranks + " ranks: workers go in pairs; start an even number");
  if (o.test == Test::solo || o.test == Test::callgrind)
    throw BadUsage(std::string("--test ") + test_name(o.test) +
                   " is one thread of one process; start it without a launcher or with --no-mpi");
  if (o.threads || (o.processes_given && o.workers != job[0]))
    throw BadUsage("a job of " + ranks + " ranks has " + ranks +
                   " workers; leave out --threads and --processes");
  o.job = job;
  o.workers = job[0];
  if (!o.poll_chosen) o.yield_every = yield_interval(job[1]);
}

nlohmann::json options_json(const Options& o) {
  return {{"plugin", o.plugin},
          {"test", test_name(o.test)},
          {"sizes", o.sizes},
          {"iters", o.iters},
          {"repeats", o.repeats},
          {"window", o.window},
          {"loop", loop_name(o.loop)},
          {"group", o.group},
          {"connections", o.connections},
          {"workers", o.workers},
          {"threads", o.threads},
          {"devices", o.devices},
          {"gpus", o.gpus},
          {"verify", o.verify},
          {"optional_recv", o.optional_recv},
          {"yield_every", o.yield_every},
          {"timeout_s", o.timeout_s}};
}

}  // namespace twinpath::tools
