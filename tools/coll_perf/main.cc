// coll_perf: collectives with every element checked, through NCCL on GPUs or, with --cpu, over
// the net plugin's ABI on host memory.  This file decides what this process is (launcher, rank
// of ours, rank of a job, threads) and turns errors into messages and exit status.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>

#include "plugin/base/version.h"
#include "tools/coll_perf/cpu_bench.h"
#include "tools/coll_perf/environment.h"
#include "tools/coll_perf/error.h"
#include "tools/coll_perf/gpu_bench.h"
#include "tools/coll_perf/launch.h"
#include "tools/common/circumstances.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/common/plot.h"
#include "tools/common/said_once.h"

namespace twinpath::coll {
namespace {

int gpu_of(const Options& options, int local_rank, int present) {
  const auto at = static_cast<std::size_t>(local_rank);
  if (!options.gpus.empty() && at >= options.gpus.size()) {
    throw ToolError(kExitUsage, strf("--gpus names %zu GPUs, local rank %d needs one more",
                                     options.gpus.size(), local_rank));
  }
  const int gpu = options.gpus.empty() ? local_rank : options.gpus[at];
  if (gpu >= present) {
    throw ToolError(kExitMissing,
                    strf("GPU %d is asked for, but this host shows %d; see nvidia-smi and "
                         "CUDA_VISIBLE_DEVICES, or give fewer with --ngpus or --gpus",
                         gpu, present));
  }
  return gpu;
}

// How many ranks a run on this host gets; complains when a GPU is missing.
int local_ranks(const Options& options, int present) {
  int ranks = !options.gpus.empty() ? static_cast<int>(options.gpus.size()) : options.gpu_count;
  if (!options.gpus.empty() && options.gpu_count > 0) {
    ranks = std::min(ranks, options.gpu_count);
  }
  if (ranks == 0) ranks = present;
  if (ranks == 0) throw ToolError(kExitMissing, "this host shows no GPU; use --cpu 4");
  for (int r = 0; r < ranks; ++r) (void)gpu_of(options, r, present);
  if (options.scenario != Scenario::none && ranks < 2) {
    throw ToolError(kExitUsage, "a scenario needs at least two GPUs");
  }
  return ranks;
}

// The first lines of the output, of rank 0.
void describe_run(Report& report, const Options& options, Group& group, const std::string& mine,
                  const std::string& nccl) {
  struct Line {
    char text[160];
  };
  Line line{};
  std::snprintf(line.text, sizeof line.text, "rank %d pid %d %s", group.rank(), getpid(),
                mine.c_str());
  std::vector<Line> all(static_cast<std::size_t>(group.size()));
  group.gather(&line, sizeof line, all.data());
  if (group.rank() != 0) return;
  report.note(strf("coll_perf %s%s", built_from(), nccl.c_str()));
  for (const Line& l : all) report.note(l.text);
  if (options.show_env) {
    for (const auto& [name, value] : tools::relevant_environment()) report.note(name + "=" + value);
  }
}

int run_gpu_rank(const Options& options, const Apis& apis, Group& group, int local_rank,
                 Watchdog& watchdog) {
  Report report(group.rank() == 0, options);
  const int gpu = gpu_of(options, local_rank, apis.cuda.device_count());
  const Context context(apis.cuda, gpu);
  describe_run(report, options, group, strf("GPU %d %s", gpu, apis.cuda.device_text(gpu).c_str()),
               ", NCCL " + apis.nccl.version_text() + " from " + apis.nccl.file);
  GpuJob job{options, apis, gpu, group, report, watchdog};
  if (options.scenario == Scenario::none) {
    run_gpu_table(job);
  } else {
    run_gpu_scenario(job);
  }
  return report.finish() ? kExitOk : kExitWrong;
}

// A rank that fails says why and ends its process at once: cleaning up may wait for a GPU or a
// peer that will never answer, and the others notice by the closed sockets.
[[noreturn]] void fail_rank(int rank, const std::exception& error) {
  // Ranks that find the same fault say it once; that this one ended, its status tells.
  if (tools::first_to_say(error.what()))
    std::fprintf(stderr, "coll_perf: rank %d: %s\n", rank, error.what());
  std::fflush(nullptr);
  _exit(exit_code_of(error));
}

int run_rank(const Options& options, Group group, int local_rank) {
  try {
    if (options.cpu_ranks > 0) {
      Report report(group.rank() == 0, options);
      describe_run(report, options, group, "", "");
      run_cpu_table(options, group, report);
      return report.finish() ? kExitOk : kExitWrong;
    }
    Watchdog watchdog(options.timeout_s);
    const CudaApi cuda = CudaApi::open();
    const NcclApi nccl = NcclApi::open(options.nccl);
    return run_gpu_rank(options, {cuda, nccl}, group, local_rank, watchdog);
  } catch (const tools::Failure& error) {
    fail_rank(group.rank(), error);
  }
}

int run_threads(const Options& options, const Apis& apis, int ranks) {
  auto links = Group::socket_pairs(ranks);
  Watchdog watchdog(options.timeout_s);
  std::atomic<int> worst{kExitOk};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Group group(rank, ranks, std::move(links[static_cast<std::size_t>(rank)]),
                    options.timeout_s);
        const int code = run_gpu_rank(options, apis, group, rank, watchdog);
        for (int old = worst; old < code && !worst.compare_exchange_weak(old, code);) {
        }
      } catch (const tools::Failure& error) {
        fail_rank(rank, error);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return worst;
}

void print_environment(const Options& options, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    // JSON owns stdout; there the variables appear under "circumstances".
    std::fprintf(options.json ? stderr : stdout, "# %s\n", line.c_str());
  }
  std::fflush(stdout);
}

// All that a run on this host sets.
void set_environment(const Options& options, int nccl_version) {
  print_environment(options, apply_environment(options, nccl_version));
  print_environment(options, choose_fabric(options));
}

// A rank that mpirun, srun or a person started.
int run_job(const Options& options, const Place& place) {
  if (options.threads || options.scenario == Scenario::kill) {
    throw ToolError(kExitUsage, strf("--threads and --scenario kill do not go with %s; start "
                                     "without it, or with --no-mpi",
                                     place.from));
  }
  const int version = options.cpu_ranks > 0 ? 0 : NcclApi::open(options.nccl).version;
  auto lines = apply_environment(options, version);
  Group group(place.rank, place.size,
              tools::rendezvous(place, options.rendezvous, options.timeout_s), options.timeout_s);
  const tools::Hosts hosts(group);
  if (hosts.one()) {
    for (std::string& line : choose_fabric(options)) lines.push_back(std::move(line));
  }
  if (place.rank == 0) print_environment(options, lines);
  const int local = place.local_rank >= 0 ? place.local_rank : hosts.local_rank(place.rank);
  return run_rank(options, std::move(group), local);
}

int run(int argc, char** argv) {
  (void)tools::nccl_conf();  // what NCCL would find, also where --cpu does without it
  Options options;
  int code = kExitOk;
  if (!parse_options(argc, argv, options, code)) return code;
  std::vector<UniqueFd> links;
  if (const auto place = started_place(links)) {
    return run_rank(options, Group(place->rank, place->size, std::move(links), options.timeout_s),
                    place->local_rank);
  }
  const auto place = tools::find_place(options.rank, options.no_mpi);
  // Rank 0 draws; another host need not have that folder.
  if (!place || place->rank == 0) {
    const std::string why = tools::plot_file_complaint(options.plot);
    if (!why.empty()) throw ToolError(kExitUsage, why);
  }
  if (place) return run_job(options, *place);
  if (!options.json) std::fputs(tools::describe(tools::circumstances()).c_str(), stdout);
  std::fflush(stdout);  // before anything that stderr may say
  if (options.cpu_ranks > 0) {
    set_environment(options, 0);
    return run_processes(options.cpu_ranks, -1);
  }
  const CudaApi cuda = CudaApi::open();
  const int ranks = local_ranks(options, cuda.device_count());
  // NCCL reads some of the variables when it is loaded.
  set_environment(options, NcclApi::open(options.nccl).version);
  if (!options.threads) {
    return run_processes(ranks, options.scenario == Scenario::kill ? ranks - 1 : -1);
  }
  if (options.scenario == Scenario::kill) {
    throw ToolError(kExitUsage, "--scenario kill ends a process; leave out --threads");
  }
  const NcclApi nccl = NcclApi::open(options.nccl);
  return run_threads(options, {cuda, nccl}, ranks);
}

}  // namespace
}  // namespace twinpath::coll

int main(int argc, char** argv) {
  return twinpath::tools::run_tool(
      "coll_perf", twinpath::coll::kExitFailed, [&] { return twinpath::coll::run(argc, argv); },
      twinpath::tools::exit_code_of);
}
