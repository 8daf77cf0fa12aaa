// What contexts that nobody uses cost one that is used: a kernel (a CPU thread) signals its own
// rank over one queue pair while many lie idle.
//
// The engine spins; two processors are enough.  Modes by TWINPATH_MODE, as in tests.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "plugin/base/clock.h"
#include "test/gda/gin_ranks.h"
#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;
using namespace twinpath::test;

namespace {

constexpr int kRounds = 9, kSignals = 4000;

int contexts = 1;  // of the scenario, which is a plain function

std::string measure(Rank& r) {
  ContextSettings settings = settings30(contexts);
  settings.queue_depth = 16;
  const Member member = join(r, settings);
  EXPECT_GIN(member.context);
  auto kernel = member.kernel<GinKernel30>();
  std::vector<double> each;
  std::uint64_t value = 0;
  for (int round = -1; round < kRounds; ++round) {
    const std::int64_t began = now_ns();
    for (int n = 0; n < kSignals; ++n) {
      TRY_GIN(kernel.signal(0, 0));
      ++value;
      while (kernel.read_signal(0) < value) {
      }
    }
    if (round >= 0) each.push_back(static_cast<double>(now_ns() - began) / kSignals);
  }
  std::sort(each.begin(), each.end());
  std::printf("%8d contexts: %8.0f ns a signal (%.0f to %.0f)\n", contexts, each[kRounds / 2],
              each.front(), each.back());
  std::fflush(stdout);
  return {};
}

}  // namespace

TEST_CASE("What idle contexts cost one that is used") {
  Config config = gin_config();
  config.gin_engine = EngineChoice::spin;
  for (const int n : {1, 16, 64, 264, 1024}) {
    contexts = n;
    CHECK(run_threads(1, measure, config) == "");
  }
}
