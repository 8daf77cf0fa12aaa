// How many processors a process may use.
#include "plugin/base/cpus.h"

#include <sched.h>

#include "test/support/catch.h"

using namespace twinpath;

TEST_CASE("a control group's quota is whole processors, rounded up") {
  CHECK(cpus_of_quota("200000 100000\n") == 2);
  CHECK(cpus_of_quota("200001 100000\n") == 3);
  CHECK(cpus_of_quota("50000 100000\n") == 1);
  CHECK(cpus_of_quota("400000\n 100000\n") == 4);  // the first version's two files
}

TEST_CASE("what is no quota is no limit") {
  for (const char* text : {"", "max 100000\n", "-1\n 100000\n", "100000", "100000 0", "0 100000",
                           "x y", "99999999999999999999 1"}) {
    CAPTURE(text);
    CHECK(cpus_of_quota(text) == 0);
  }
}

TEST_CASE("a process that is bound to one processor may use one") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(usable_cpus() >= 1);
  CHECK(usable_cpus() <= CPU_COUNT(&before));
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_cpus() == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}
