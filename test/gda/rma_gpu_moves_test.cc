// A team's port fails while hosts put, with signals in memory of a GPU that is made up: what the
// receiving adapter adds goes on over the second port, too.
#include "test/gda/gpu_window.h"
#include "test/gda/move_seeds.h"
#include "test/gda/rma_moves.h"
#include "test/support/catch.h"
#include "test/support/log_capture.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

struct GpuWords : GpuMemory<RmaComm, RmaWindow> {
  GpuWords(RmaComm& comm, std::size_t bytes) : GpuMemory(comm, bytes, true) {}
  RmaPlace at(std::uint64_t offset) const { return {window(), offset}; }
};

Config gpu_soon_back() {
  Config config = soon_back();
  config.soft_cuda = SoftCuda::inprocess;
  return config;
}

}  // namespace

TEST_CASE("F4: Host RMA with signals in GPU memory goes back to the first port, by seed") {
  if (on_adapters()) return;
  FakeGpu gpu;
  fake = &gpu;
  each_seed([](unsigned seed, const LogCapture& log) {
    Fault often{"often", seed % 2 != 0, soft::PortLoss::all};
    often.times = 3;
    REQUIRE(by_seed(seed, often, log, {rma_moves<GpuWords>, queues_of(often), gpu_soon_back}) ==
            "");
    CHECK(log.has(LogLevel::info, "goes back to soft0, which works again"));
  });
}

TEST_CASE("F1: Host RMA with signals in GPU memory goes on over the second port") {
  if (on_adapters()) return;
  FakeGpu gpu;
  fake = &gpu;
  Config config = merged_config();
  config.soft_cuda = SoftCuda::inprocess;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    fault = {"down", seed % 2 != 0, soft::PortLoss::all, 5000 * seed, seed};
    const LogCapture log;
    CHECK(run_threads(2, rma_moves<GpuWords>, config) == "");
    CHECK(log.has("leaves soft0 for soft1"));
  }
}
