// net_perf: measures any NCCL net plugin between workers of this host.  The parent parses, starts
// workers (which are this program again, or threads), collects and prints; see README.md.
#include <unistd.h>

#include <cstdio>

#include "tools/net_perf/report.h"
#include "tools/net_perf/supervisor.h"
#include "tools/net_perf/tests.h"

int main(int argc, char** argv) {
  using namespace twinpath;
  using namespace twinpath::tools;
  Options options;
  int exit_code = 0;
  if (!parse_options(argc, argv, options, exit_code)) return exit_code;
  if (options.rank >= 0) {
    worker_main(options, options.rank, Channel(UniqueFd(options.control_fd)),
                Channel(UniqueFd(options.peer_fd)));
    return 0;
  }
  if (options.test == Test::callgrind || options.test == Test::solo)
    return run_single_thread(options);
  Report report(options);
  std::string why;
  Supervisor supervisor{argc,
                        argv,
                        options,
                        worker_main,
                        [&](int rank, const nlohmann::json& j) { report.add(rank, j); },
                        [&](double f, const std::string& phase) { report.progress(f, phase); }};
  const bool well = supervisor.run(why);
  report.print(why);
  const int status = well && !report.wrong_data() ? 0 : 1;
  // A failed run may have left threads inside the plugin; do not run destructors under them.
  if (!well && options.threads) _exit(status);
  return status;
}
