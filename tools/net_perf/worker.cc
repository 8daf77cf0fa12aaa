// A worker's main function.
#include <unistd.h>

#include <cstdio>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

void run_test(Endpoint& e) {
  if (e.rank == 0) {
    nlohmann::json device{{"name", e.props.name},
                          {"pci_path", e.props.pci_path},
                          {"speed_mbps", e.props.speed_mbps},
                          {"max_recvs", e.props.max_recvs}};
    e.reporter.result({{"plugin",
                        {{"path", e.options.plugin},
                         {"name", e.plugin->name()},
                         {"abi", e.plugin->abi()},
                         {"device", std::move(device)},
                         {"gpu", e.gpu ? e.gpu->gpu_name() : ""}}}});
  }
  switch (e.options.test) {
    case Test::latency:
      return run_latency(e);
    case Test::conns:
      return run_connections(e);
    default:
      return run_streams(e);
  }
}

}  // namespace

void worker_main(const Options& options, int rank, Channel control, Channel peer) {
  Reporter reporter(std::move(control));
  try {
    {
      Endpoint endpoint(options, rank, reporter, peer);
      run_test(endpoint);
      endpoint.pair_barrier();  // neither closes while the other still works
      reporter.phase("close");
    }
    reporter.done();
  } catch (const std::exception& e) {
    try {
      reporter.error(e.what());
    } catch (const Failure&) {
      std::fprintf(stderr, "net_perf worker %d: %s\n", rank, e.what());  // the parent is gone
    }
  }
}

}  // namespace twinpath::tools
