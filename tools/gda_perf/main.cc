// gda_perf: GPU-initiated networking through NCCL's GIN device API, whatever plugin drives it.
// This file sets NCCL up, starts a thread per side and turns errors into an exit status.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tools/common/output.h"
#include "tools/gda_perf/bench.h"
#include "tools/gda_perf/error.h"

namespace twinpath::gda_perf {
namespace {

int choose_gpus(const Options& options) {
  int present = 0;
  const cudaError_t error = cudaGetDeviceCount(&present);
  if (error != cudaSuccess || present == 0) {
    throw ToolError(kExitMissing, std::string("this host shows no GPU (") +
                                      cudaGetErrorString(error) +
                                      "); see nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  const int wanted = options.gpus != 0 ? options.gpus : present > 1 ? 2 : 1;
  if (wanted > present) {
    throw ToolError(kExitMissing, "--gpus " + std::to_string(wanted) + ", but this host shows " +
                                      std::to_string(present) +
                                      "; see nvidia-smi and CUDA_VISIBLE_DEVICES, or give fewer");
  }
  return wanted;
}

void set_environment(const Options& options) {
  const std::string plugin = plugin_for_nccl(options);
  if (!plugin.empty()) setenv("NCCL_NET_PLUGIN", plugin.c_str(), 1);
  // Nothing here uses multicast, and setting it up can fail where GIN does not.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
}

std::string gpu_name(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

void play(Part& part) {
  for (const Test test : part.bench.options.tests) {
    if (test == Test::rate) {
      run_rate(part);
    } else if (test == Test::counters) {
      run_counters(part);
    } else if (test == Test::bw) {
      run_stream(part);
    } else {
      run_latency(part, test);
    }
  }
}

int measure(const Options& options, const NcclApi& nccl, int gpus, Report& report) {
  Watchdog watchdog(options.timeout_s);
  const bool alone = gpus == 1;
  const int sides = (alone ? 2 : gpus) * options.communicators;
  // Those of the first communicator, then those of the next.
  std::vector<std::unique_ptr<Rank>> ranks(static_cast<std::size_t>(gpus * options.communicators));
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(options.communicators));
  for (ncclUniqueId& id : ids) nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId");
  watchdog.step("setting up NCCL and its device communicators");
  in_threads(gpus, [&](int r) {
    // Waiting threads sleep, so that the CPU time of a run is the engine's.
    check(cudaSetDevice(r), "cudaSetDevice");
    check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags");
    for (std::size_t c = 0; c < ids.size(); ++c) {
      ranks[c * static_cast<std::size_t>(gpus) + static_cast<std::size_t>(r)] =
          std::make_unique<Rank>(nccl, r, gpus, ids[c], options.area_bytes(), alone ? 2 : 1,
                                 options.contexts, options.window_signals());
    }
  });
  report.fact("backend", ranks[0]->backend());
  report.fact("contexts", ranks[0]->contexts());
  Bench bench(options, report, watchdog, sides);
  in_threads(sides, [&](int s) {
    const Rank& rank = *ranks[static_cast<std::size_t>(alone ? s / 2 : s)];
    const int peer = alone ? 0 : (s % gpus) ^ 1;
    Player player(rank, static_cast<unsigned>(s % 2), peer, nccl, options.iterations);
    Part part{bench, player, s};
    play(part);
    bench.meet();  // nobody frees anything while another still works
  });
  watchdog.step("taking NCCL's device communicators down");
  in_threads(gpus, [&](int r) {
    for (auto i = static_cast<std::size_t>(r); i < ranks.size();
         i += static_cast<std::size_t>(gpus))
      ranks[i].reset();
  });
  return report.finish() ? kExitOk : kExitWrong;
}

int run(int argc, char** argv) {
  Options options;
  int code = kExitOk;
  if (!parse_options(argc, argv, options, code)) return code;
  if (options.newer_tests() && !kNewerTests) {
    throw ToolError(kExitUsage,
                    "signals in windows and get need NCCL 2.30.7: this program was built with the "
                    "headers of an older one; see -Dgda_perf_nccl");
  }
  set_environment(options);
  const NcclApi nccl = NcclApi::open(options.nccl);
  const int gpus = choose_gpus(options);
  Report report(options);
  report.fact("nccl", nccl.version_text() + " from " + nccl.file);
  report.fact("plugin", std::getenv("NCCL_NET_PLUGIN"));
  report.fact("gpus", std::to_string(gpus) + " x " + gpu_name(0));
  return measure(options, nccl, gpus, report);
}

}  // namespace
}  // namespace twinpath::gda_perf

int main(int argc, char** argv) {
  return twinpath::tools::run_tool(
      "gda_perf", twinpath::gda_perf::kExitFailed,
      [&] { return twinpath::gda_perf::run(argc, argv); }, twinpath::tools::exit_code_of);
}
