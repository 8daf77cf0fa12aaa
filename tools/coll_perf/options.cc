#include "tools/coll_perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "plugin/base/version.h"
#include "tools/coll_perf/error.h"
#include "tools/common/arguments.h"
#include "tools/common/units.h"

namespace twinpath::coll {
namespace {

constexpr const char* kFooter =
    R"(Sizes are bytes, with k, m or g for powers of 1024.  Times are microseconds,
bandwidths 1e9 bytes per second; algbw = bytes / time, busbw = algbw times the
share of the data that crosses a link (2(n-1)/n for all_reduce).  Times are
taken on the GPU over all iterations after one extra that brings the ranks
together, and averaged over the ranks.

Environment, each variable only where it is not set already, and printed:
  --plugin      NCCL_NET_PLUGIN=<path> (also over a value of your own),
                NCCL_NET=<name in the plugin>: NCCL then fails rather than use
                its own transports silently
  --via-plugin  these two, NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1,
                NCCL_NVLS_ENABLE=0, NCCL_NET_GDR_LEVEL=SYS
  --via-plugin, --cpu   TWINPATH_FABRIC=soft when all ranks are on one host, not
                        between hosts

Several hosts: one process a rank, started by mpirun or srun, or by hand with
--rank; then --cpu's number does not count.  Rank 0 prints.  Where it listens is
--rendezvous, else $MASTER_ADDR:$MASTER_PORT, else the first node of a Slurm
step, or mpirun's host:
  mpirun -np 2 --host a,b coll_perf --cpu
  srun -N 2 -n 2 coll_perf --cpu
  on a: coll_perf --cpu --rank 0/2 --rendezvous a:29500
  on b: coll_perf --cpu --rank 1/2 --rendezvous a:29500

Examples:
  coll_perf -b 8 -e 1g --collective all            all GPUs, one process each
  coll_perf --via-plugin --plugin ./X.so           all traffic through X.so
  coll_perf --cpu 4                                no GPU: 4 processes
  coll_perf --cpu 4 --plot cpu.svg                 the same, and a picture
  coll_perf --scenario kill --via-plugin           a rank dies: who notices?
  mpirun -np 4 coll_perf --rendezvous host1:29500  one rank per MPI process

Exit status: 0 all right, 1 wrong elements or scenario failed, 2 bad option, 3
no GPU, driver or NCCL, 4 an operation failed or timed out.)";

const std::string kScenarios = "split, many-comms, again, abort or kill";

std::size_t bytes_or_throw(const char* option, const std::string& text) {
  const auto value = tools::parse_bytes(text);
  if (!value || *value == 0) {
    throw ToolError(kExitUsage, strf("%s \"%s\" is not a size; use for example 8, 64k, 1m or 1g",
                                     option, text.c_str()));
  }
  return *value;
}

std::vector<int> parse_gpus(const std::string& text) {
  // NCCL takes ranks with different ones for ranks of different hosts, and does not mind.
  const bool may_share = std::getenv("NCCL_HOSTID") != nullptr;
  std::vector<int> out;
  for (const std::string& word : CLI::detail::split(text, ',')) {
    char* end = nullptr;
    const long n = std::strtol(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || n < 0 || n > 1023) {
      throw ToolError(kExitUsage, "--gpus \"" + text + "\": \"" + word +
                                      "\" is not a GPU number; use for example 0,1,3");
    }
    if (!may_share && std::find(out.begin(), out.end(), n) != out.end()) {
      throw ToolError(kExitUsage, "--gpus \"" + text + "\" names GPU " + word +
                                      " twice; NCCL needs a GPU per rank (processes of which each "
                                      "has an NCCL_HOSTID of its own may share one)");
    }
    out.push_back(static_cast<int>(n));
  }
  return out;
}

}  // namespace

bool parse_options(int argc, char** argv, Options& out, int& exit_code) {
  CLI::App app{"NCCL's collectives on GPUs, or over a net plugin on host memory, all checked.",
               "coll_perf"};
  tools::set_form(app);
  app.footer(kFooter);
  std::string collectives = "all_reduce", begin = "8", end, types = "float", op = "sum", gpus;
  std::string algorithm = "both", scenario;
  std::size_t factor = 0;
  app.add_option(
      "--collective,-c", collectives,
      "list of all_reduce all_gather reduce_scatter broadcast sendrecv alltoall, or all");
  app.add_option("--begin,-b", begin, "smallest size [8]");
  app.add_option("--end,-e", end, "largest size [128m; with --cpu 4m]");
  app.add_option("--factor,-f", factor, "from one size to the next [2; with --cpu 4]")
      ->check(tools::is_whole(2, 1 << 20));
  app.add_option("--type,-d", types, "list of types, e.g. float,bf16,int8, or all");
  app.add_option("--op,-o", op, "sum, prod, max or min");
  app.add_option("--iterations,-n", out.iterations, "timed iterations per line [20]")
      ->check(tools::is_whole(1, 1000000));
  app.add_option("--warmup,-w", out.warmup, "untimed iterations before them [5]")
      ->check(tools::is_whole(0, 1000000));
  app.add_option("--check", out.checks, "checked rounds per line, 0 = none [1]")
      ->expected(0, 1)
      ->default_str("1")
      ->check(tools::is_whole(0, 1000000));
  app.add_flag("--json", out.json, "one JSON object on stdout in place of the table");
  app.add_option("--plot", out.plot, "FILE.svg: the results as a picture")
      ->check(tools::ends_in(".svg"));
  app.add_option("--timeout", out.timeout_s, "seconds that one step may take [120]")
      ->check(tools::is_between(1, 1000000));
  app.add_option("--gpus", gpus, "list of GPU numbers, one per rank [all]");
  app.add_option("--ngpus,-g", out.gpu_count, "use the first N GPUs")
      ->check(tools::is_whole(1, 1024));
  app.add_flag("--threads,-t", out.threads, "one process with a thread per GPU");
  app.add_option("--nccl", out.nccl, "NCCL library [libnccl.so.2]");
  app.add_flag("--cuda-malloc", out.cuda_malloc, "buffers from cuMemAlloc, not ncclMemAlloc");
  app.add_flag(
      "--register", out.registered,
      "buffers known to NCCL (ncclCommRegister), which it may give the plugin as they are");
  app.add_flag("--graph", out.graph, "operations launched as CUDA graphs");
  app.add_option("--plugin", out.plugin,
                 "net plugin: a path, or the X of libnccl-net-X.so [with --via-plugin and --cpu: "
                 "$NCCL_NET_PLUGIN, else the one built or installed with this program]");
  app.add_flag("--via-plugin", out.via_plugin,
               "send everything through the net plugin: sets the variables listed below");
  app.add_flag("--show-env", out.show_env, "print all NCCL_* and TWINPATH_* variables in effect");
  app.add_option("--rendezvous", out.rendezvous,
                 "HOST:PORT, or [IPv6]:PORT, of rank 0 of a job [$MASTER_ADDR:$MASTER_PORT]")
      ->check(tools::is_host_port(1));
  app.add_option("--rank", out.rank,
                 "RANK/RANKS of this process in a job started by hand, see below");
  app.add_flag("--no-mpi", out.no_mpi, "ignore an mpirun or Slurm environment");
  app.add_option("--scenario", scenario, kScenarios + ", in place of the table");
  app.add_option("--comms", out.comms, "communicators of many-comms [16]")
      ->check(tools::is_whole(1, 64));
  app.add_option("--cpu", out.cpu_ranks, "no GPU: N processes over the net ABI on host memory [4]")
      ->expected(0, 1)
      ->default_str("4")
      ->check(tools::is_whole(2, 256));
  app.add_option("--algo", algorithm, "with --cpu: ring, tree or both");
  app.add_option("--net-device", out.net_devices,
                 "with --cpu: device index or name, a+b merges two into one; a list goes round "
                 "over ranks [0]")
      ->delimiter(',')
      ->check([](const std::string& text) {
        return text.empty() || text[0] == '-' ? "a device is an index or a name" : "";
      });
  app.set_version_flag("--version", std::string("coll_perf ") + built_from());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? kExitOk : kExitUsage;
    return false;
  }
  const bool cpu = out.cpu_ranks > 0;
  out.collectives = parse_collectives(collectives);
  out.types = parse_types(types);
  out.op = parse_op(op);
  if (out.collectives.empty() || out.types.empty()) {
    throw ToolError(kExitUsage,
                    "--collective and --type need at least one name; leave the option "
                    "out for all_reduce of float");
  }
  if (!gpus.empty()) out.gpus = parse_gpus(gpus);
  const bool end_given = !end.empty();
  if (end.empty()) end = cpu ? "4m" : "128m";
  const std::size_t first = bytes_or_throw("--begin", begin);
  std::size_t last = bytes_or_throw("--end", end);
  if (first > last && end_given) {
    throw ToolError(kExitUsage, strf("the range of sizes is empty: --begin %s is above --end %s",
                                     begin.c_str(), end.c_str()));
  }
  last = std::max(first, last);
  out.sizes = tools::size_steps(first, last, factor != 0 ? factor : (cpu ? 4 : 2));
  if (algorithm == "both" || algorithm == "ring") out.algorithms.push_back(Algorithm::ring);
  if (algorithm == "both" || algorithm == "tree") out.algorithms.push_back(Algorithm::tree);
  if (out.algorithms.empty()) {
    throw ToolError(kExitUsage, "--algo \"" + algorithm + "\" is unknown; use ring, tree or both");
  }
  const std::map<std::string, Scenario> scenarios = {
      {"", Scenario::none},       {"split", Scenario::split}, {"many-comms", Scenario::many_comms},
      {"again", Scenario::again}, {"abort", Scenario::abort}, {"kill", Scenario::kill}};
  const auto found = scenarios.find(scenario);
  if (found == scenarios.end()) {
    throw ToolError(kExitUsage, "--scenario \"" + scenario + "\" is unknown; use " + kScenarios);
  }
  out.scenario = found->second;
  if (out.scenario != Scenario::none && !out.plot.empty()) {
    throw ToolError(kExitUsage, "--scenario has no figures to draw; leave out --plot");
  }
  if ((out.registered || out.graph) && (cpu || out.scenario != Scenario::none)) {
    throw ToolError(kExitUsage, "--register and --graph are for the table of collectives on GPUs");
  }
  if (cpu && out.scenario != Scenario::none) {
    throw ToolError(kExitUsage, "--scenario needs GPUs and NCCL; leave out --cpu");
  }
  if (cpu) {
    for (const DataType t : out.types) {
      if (t != DataType::float32 && t != DataType::int32 && t != DataType::int8) {
        throw ToolError(kExitUsage, std::string("type ") + type_info(t).name +
                                        " is not offered with --cpu; use float, int32 or int8");
      }
    }
    if (out.op != ReduceOp::sum) throw ToolError(kExitUsage, "--cpu offers --op sum only");
    if (collectives != "all_reduce") {
      throw ToolError(kExitUsage, "--cpu offers --collective all_reduce only");
    }
  }
  return true;
}

}  // namespace twinpath::coll
