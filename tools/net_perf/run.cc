#include "tools/net_perf/run.h"

#include <unistd.h>

#include "tools/net_perf/interrupt.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {

bool run_once(int argc, char** argv, const Options& options, Abroad* abroad, Report& report,
              std::string& why) {
  if (abroad != nullptr) report.set_hosts(abroad->hosts);
  Supervisor supervisor{argc,
                        argv,
                        options,
                        worker_main,
                        abroad,
                        [&](int rank, const nlohmann::json& j) { report.add(rank, j); },
                        [&](double f, const std::string& phase) { report.progress(f, phase); }};
  const bool well = supervisor.run(why);
  report.set_interrupted(supervisor.interrupted);
  return well;
}

int run_workers(int argc, char** argv, const Options& options, Abroad* abroad) {
  ProgressBar bar(!options.json);
  Report report(options, bar, options.json ? Report::Rows::at_the_end : Report::Rows::as_they_come);
  std::string why;
  const bool well = run_once(argc, argv, options, abroad, report, why);
  report.print(why);
  if (report.interrupted() != 0) end_by(report.interrupted());
  const int status = well && !report.wrong_data() ? 0 : 1;
  // A failed run may have left threads inside the plugin; do not run destructors under them.
  if (!well && options.threads) _exit(status);
  return status;
}

}  // namespace twinpath::tools
