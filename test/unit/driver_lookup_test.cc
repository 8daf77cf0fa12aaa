// Looking for the CUDA driver in a program that has none: every connection and registration does.
#include <time.h>

#include "plugin/base/clock.h"
#include "plugin/gpu/driver.h"
#include "test/support/catch.h"

using namespace twinpath;

namespace {

std::int64_t thread_ran_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

}  // namespace

TEST_CASE("asking for a CUDA driver that is not loaded searches no directories") {
  constexpr int kAsked = 2000;
  const std::int64_t begin = thread_ran_ns();
  for (int i = 0; i < kAsked; ++i) {
    if (gpu::cuda::driver() != nullptr || gpu::cuda::library_loaded()) return;
  }
  // A search maps the loader's cache and tries each directory, 17 us and more; without one it is a
  // call into the loader.
  const std::int64_t each = (thread_ran_ns() - begin) / kAsked;
  INFO(each << " ns each");
  CHECK(each < 10000);
}
