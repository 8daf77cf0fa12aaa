// How long is waited for peers that are slow, that do nothing, or that are gone, and how often that
// is said: made-up time.
#include <vector>

#include "plugin/base/hearing_time.h"
#include "plugin/base/wait_within.h"
#include "proxy/connect/making_clock.h"
#include "proxy/queues/loss_log.h"
#include "proxy/queues/quiet_budget.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

using V = MakingClock::Verdict;

// Looks each 100 ms for that long; what was said, by when (ms).
struct Told {
  std::vector<std::int64_t> tells;
  std::int64_t gave_up_ms = -1;
};
Told looked(std::int64_t limit_ms, std::int64_t for_ms, std::int64_t step_ms,
            std::int64_t (*owed_ms)(std::int64_t at_ms)) {
  Told told;
  MakingClock clock(limit_ms);
  for (std::int64_t at = 1; at <= for_ms; at += step_ms) {
    const V v = clock.look(at * kMillisecond, owed_ms(at));
    if (v == V::tell) told.tells.push_back(at / 1000);
    if (v == V::give_up) {
      told.gave_up_ms = at;
      break;
    }
  }
  return told;
}

}  // namespace

TEST_CASE("a peer whose host answers is waited for, and named at ever longer intervals") {
  const Told told = looked(20000, 1'000'000, 100, [](std::int64_t) { return std::int64_t{0}; });
  CHECK(told.gave_up_ms == -1);
  CHECK(told.tells == std::vector<std::int64_t>{20, 40, 80, 160, 320, 640});
}

TEST_CASE("a host that does not answer is given up after the limit, with or without a connection") {
  const Told never =
      looked(20000, 60000, 100, [](std::int64_t) { return MakingClock::kNoConnection; });
  CHECK(never.gave_up_ms >= 20000);
  CHECK(never.gave_up_ms < 20200);
  // From 50 s on it is silent.
  const Told later = looked(20000, 200'000, 100,
                            [](std::int64_t at) { return std::max<std::int64_t>(at - 50000, 0); });
  CHECK(later.gave_up_ms >= 70000);
  CHECK(later.gave_up_ms < 70200);
}

TEST_CASE("time in which nobody looked is not waiting") {
  // A look every 30 s counts as a second each.
  const Told told =
      looked(20000, 19 * 30000, 30000, [](std::int64_t) { return MakingClock::kNoConnection; });
  CHECK(told.gave_up_ms == -1);
  CHECK(told.tells.empty());
}

TEST_CASE("a limit below a second has several looks, too") {
  // A look every 700 ms counts as a quarter of the limit each.
  const auto silent = [](std::int64_t) { return MakingClock::kNoConnection; };
  CHECK(looked(600, 4 * 700, 700, silent).gave_up_ms == -1);
  CHECK(looked(600, 5 * 700, 700, silent).gave_up_ms == 1 + 4 * 700);
}

TEST_CASE("of many that wait one line is written, and the next after longer pauses, with a count") {
  WaitLog log(20 * kSecond);
  CHECK(log.tell(20 * kSecond) == 0u);
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(log.tell(20 * kSecond + i));
  CHECK(log.tell(40 * kSecond) == 1000u);
  CHECK_FALSE(log.tell(79 * kSecond));
  CHECK(log.tell(80 * kSecond) == 1u);
  // Another time, long after.
  CHECK(log.tell(4000 * kSecond) == 0u);
  CHECK(log.tell(4021 * kSecond) == 0u);
}

TEST_CASE("a thousand comms that close on silent peers wait no longer than a few") {
  QuietBudget budget;
  std::int64_t now = 5 * kSecond, begin = now;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t quiet = budget.allowed(now);
    CHECK(quiet >= QuietBudget::kLeast);
    CHECK(quiet <= QuietBudget::kEach);
    if (i < 5) CHECK(quiet == QuietBudget::kEach);
    now += quiet;
    budget.spend(quiet);
  }
  CHECK(now - begin < 500 * kMillisecond);
  // Later ones have time again.
  CHECK(budget.allowed(now + QuietBudget::kWindow) == QuietBudget::kEach);
}

TEST_CASE("a comm that was stopped while it closed looks at its queues again before it leaves") {
  QuietBudget budget;
  DrainClock clock;
  std::int64_t now = 5 * kSecond;
  CHECK(clock.go_on(now, false, budget));
  now += 3600 * kSecond;  // stopped, right after it had looked
  CHECK(clock.go_on(now, false, budget));
  CHECK(clock.go_on(now + 1, true, budget));  // what came meanwhile
  int more = 0;
  while (clock.go_on(now += kMillisecond, false, budget)) ++more;
  CHECK(more >= 15);
  CHECK(more <= 25);
}

TEST_CASE("what is waited for is looked at again after a stop, and given up after its limit") {
  struct Row {
    std::int64_t step;     // from one look to the next
    std::int64_t stop_at;  // a longer way before this look,
    std::int64_t done_at;  // and from this on it is done; 0: never
    bool waited;
  };
  const Row rows[] = {{1, 0, 5, true},      {1, 0, 99, true},     {1, 0, 0, false},
                      {1, 0, 103, false},   {1, 3, 4, true},      {1, 3, 10, true},
                      {1, 3, 0, false},     {1, 50, 52, true},    {1, 50, 99, false},
                      {10'000, 1, 4, true}, {10'000, 1, 0, false}};
  for (const Row& row : rows) {
    CAPTURE(row.step, row.stop_at, row.done_at);
    std::int64_t looks = 0, now = 5 * kSecond;
    const bool waited = wait_within(
        100, [&] { return ++looks, row.done_at != 0 && looks >= row.done_at; },
        [&] { now += looks == row.stop_at ? kSecond : row.step; }, [&] { return now; });
    CHECK(waited == row.waited);
    CHECK(looks < 110);
  }
}

TEST_CASE("a caller is given its time to speak in looks of ours, and a stop is none") {
  constexpr std::int64_t kTime = HearingTime::kEach;
  for (const std::int64_t step : {kTime / 1000, kTime / 50, HearingTime::kLookAgain}) {
    CAPTURE(step);
    HearingTime hearing;
    std::int64_t now = 5 * kSecond;
    hearing.look(now);
    const std::int64_t begin = hearing.begin();
    hearing.look(now += kTime / 2 / step * step);
    hearing.look(now += 3600 * kSecond);
    CHECK_FALSE(hearing.over(begin));
    std::int64_t looks = 0;
    for (; !hearing.over(begin); ++looks) hearing.look(now += step);
    CHECK(looks >= kTime / 2 / step);
    CHECK(looks <= kTime / step);
    CHECK_FALSE(hearing.over(hearing.begin()));
  }
}

TEST_CASE("connections lost with one process: the first in full, then counts, then the whole") {
  LossLog log;
  std::vector<unsigned> told;
  for (int i = 0; i < 1234; ++i)
    if (const auto n = log.lost("hostB pid 7")) told.push_back(*n);
  CHECK(told == std::vector<unsigned>{LossLog::kInFull, 10, 100, 1000});
  CHECK(log.lost("hostB pid 8") == LossLog::kInFull);  // another process is told of by itself
  for (int i = 0; i < 1233; ++i) CHECK_FALSE(log.closed("hostB pid 7"));
  CHECK(log.closed("hostB pid 7") == 1234u);
  CHECK_FALSE(log.closed("hostB pid 8"));  // all was said
  CHECK(log.lost("hostB pid 7") == LossLog::kInFull);
}

}  // namespace twinpath
