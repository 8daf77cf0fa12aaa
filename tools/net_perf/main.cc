// net_perf: measures any NCCL net plugin between workers, on this host or, as a job, on several.
// The parent parses, starts workers (which are this program again, or threads), collects and
// prints; see README.md.
#include <sys/prctl.h>

#include "tools/common/failure.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/output.h"
#include "tools/common/plot.h"
#include "tools/common/said_once.h"
#include "tools/net_perf/compare.h"
#include "tools/net_perf/interrupt.h"
#include "tools/net_perf/job.h"
#include "tools/net_perf/run.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

int run(int argc, char** argv) {
  (void)nccl_conf();  // as in a job, for options that the environment has and for workers
  Options options;
  int exit_code = 0;
  if (!parse_options(argc, argv, options, exit_code)) return exit_code;
  if (options.rank >= 0) {
    join_said_once(options.said_fd);
    prctl(PR_SET_NAME, "net_perf");  // it was executed as /proc/self/exe
    worker_main(options, options.rank, Channel(UniqueFd(options.control_fd)),
                Channel(UniqueFd(options.peer_fd)));
    return 0;
  }
  const auto place = find_place(options.place, options.no_mpi);
  // Rank 0 draws; another host need not have that folder.
  if (!place || place->rank == 0)
    if (const std::string why = plot_file_complaint(options.plot); !why.empty())
      throw BadUsage(why);
  if (place) return run_job(argc, argv, options, *place);
  if (options.test == Test::callgrind || options.test == Test::solo)
    return run_single_thread(options);
  if (options.against.empty()) return run_workers(argc, argv, options, nullptr);
  const Interrupts between_turns;  // each turn looks at its own, which are the same
  return run_comparison(options, [&](const Options& turn, Report& report, std::string& why) {
    return run_once(argc, argv, turn, nullptr, report, why);
  });
}

}  // namespace
}  // namespace twinpath::tools

int main(int argc, char** argv) {
  using namespace twinpath::tools;
  return run_tool(
      "net_perf", 1, [&] { return run(argc, argv); },
      [](const std::exception& e) { return dynamic_cast<const BadUsage*>(&e) != nullptr ? 2 : 1; });
}
