// When a queue's port is taken to lose everything, by a clock of the test's own.
#include "gda/served/stall_watch.h"

#include "test/support/catch.h"

using namespace twinpath;
using namespace twinpath::gda;

namespace {

using Says = StallWatch::Verdict;
constexpr std::int64_t kMs = kMillisecond;

}  // namespace

TEST_CASE("A queue is mute when nothing of it ends while its second port answers") {
  StallWatch watch(200, 100000);
  CHECK(watch.look(1000 * kMs, 8, 8, 0) == Says::fine);
  CHECK(watch.look(1100 * kMs, 9, 8, 0) == Says::fine);
  CHECK(watch.look(1199 * kMs, 9, 8, 0) == Says::fine);
  CHECK(watch.look(1200 * kMs, 9, 8, 0) == Says::ask);
  CHECK(watch.quiet(1200 * kMs) == 200 * kMs);
  SECTION("it answers") {
    watch.answered(1300 * kMs);
    CHECK(watch.look(1349 * kMs, 9, 8, 0) == Says::fine);
    CHECK(watch.look(1350 * kMs, 9, 8, 0) == Says::mute);
  }
  SECTION("it does not") { CHECK(watch.look(9000 * kMs, 9, 8, 0) == Says::ask); }
  SECTION("for a host that goes on, or does not") {
    watch.answered(1200 * kMs, 7);  // where it was
    CHECK(watch.look(1300 * kMs, 9, 8, 0) == Says::ask);
    watch.answered(1300 * kMs, 7);
    CHECK(watch.look(1400 * kMs, 9, 8, 0) == Says::ask);
    watch.answered(1400 * kMs, 8);
    CHECK(watch.look(1449 * kMs, 9, 8, 0) == Says::fine);
    CHECK(watch.look(1450 * kMs, 9, 8, 0) == Says::mute);
    CHECK(watch.look(1500 * kMs, 10, 9, 0) == Says::fine);
    CHECK(watch.look(1700 * kMs, 10, 9, 0) == Says::ask);
    watch.answered(1700 * kMs, 9);  // it went on before, which says nothing of this silence
    CHECK(watch.look(1800 * kMs, 10, 9, 0) == Says::ask);
  }
  SECTION("something ends meanwhile") {
    watch.answered(1300 * kMs);
    CHECK(watch.look(1400 * kMs, 10, 9, 0) == Says::fine);
    CHECK(watch.look(1599 * kMs, 10, 9, 0) == Says::fine);
    CHECK(watch.look(1600 * kMs, 10, 9, 0) == Says::ask);  // the answer was to another question
  }
  SECTION("all ends meanwhile") {
    CHECK(watch.look(1300 * kMs, 9, 9, 0) == Says::fine);
    CHECK(watch.look(9000 * kMs, 9, 9, 0) == Says::fine);
    CHECK(watch.look(9100 * kMs, 10, 9, 0) == Says::fine);
  }
}

TEST_CASE("A queue has time for what is under way, and no limit where there is to be none") {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  StallWatch fast(200, 100000);  // a 64th of 100 Gb/s: 5.5 s for 1 GiB
  CHECK(fast.look(1 * kMs, 0, 0, 0) == Says::fine);
  constexpr std::int64_t kEnd = 201 * kMs + 5497558 * std::int64_t{1000};
  CHECK(fast.look(kEnd - 1, 1, 0, kGiB) == Says::fine);
  CHECK(fast.look(kEnd, 1, 0, kGiB) == Says::ask);
  StallWatch none(0, 100000);
  CHECK(none.look(1 * kMs, 0, 0, 0) == Says::fine);
  CHECK(none.look(3600000 * kMs, 1, 0, 0) == Says::fine);
}
