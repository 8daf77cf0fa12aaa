// How long the engine's thread rests between two looks.

#include "plugin/fabric/soft/engine_rest.h"
#include "test/support/catch.h"

using namespace twinpath;
using twinpath::soft::EngineRest;

TEST_CASE("the engine rests by what its looks find", "[soft]") {
  struct Row {
    EngineChoice choice;
    int cpus;
    std::int64_t quiet_us;  // since a look found something
    bool all_sleep;
    bool looks_on;
    int wait_us;
  };
  using enum EngineChoice;
  const Row rows[] = {
      {automatic, 16, 0, false, true, 0},
      {automatic, 16, 19, false, true, 0},
      {automatic, 16, 20, false, false, 50},
      {automatic, 5, 19, true, true, 0},
      {automatic, 4, 9, false, true, 0},
      {automatic, 4, 10, false, false, 50},
      {automatic, 2, 9, true, true, 0},
      {automatic, 1, 0, false, false, 50},
      {automatic, 16, 4999, false, false, 50},
      {automatic, 16, 5000, false, false, 1000},
      {automatic, 16, 20, true, false, 100'000},
      {automatic, 2, 10, true, false, 100'000},
      {automatic, 1, 0, true, false, 100'000},
      {sleep, 16, 0, false, false, 1000},
      {sleep, 16, 0, true, false, 100'000},
      {spin, 1, 5000, false, true, 0},
      {spin, 1, 5000, true, true, 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.choice, row.cpus, row.quiet_us, row.all_sleep);
    EngineRest rest(row.choice);
    rest.set_cpus(row.cpus);
    const std::int64_t moved_at = 7 * kSecond, now = moved_at + row.quiet_us * 1000;
    (void)rest.wait_us(moved_at, true, false);
    CHECK(rest.looks_on(now) == row.looks_on);
    CHECK(rest.wait_us(now, false, row.all_sleep) == row.wait_us);
  }
}

TEST_CASE("an engine that has found nothing yet needs its bell", "[soft]") {
  EngineRest rest(EngineChoice::automatic);
  rest.set_cpus(64);
  CHECK_FALSE(rest.looks_on(0));
  CHECK(rest.wait_us(0, false, false) == 1000);
}
