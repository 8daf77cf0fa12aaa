// When a peer counts as lost, by table; and that time nobody looked in does not count.
#include "plugin/base/peer_watch.h"

#include "plugin/base/clock.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

const char* name(Verdict v) {
  switch (v) {
    case Verdict::fine:
      return "fine";
    case Verdict::suspect:
      return "suspect";
    case Verdict::ended:
      return "ended";
    case Verdict::reset:
      return "reset";
    case Verdict::silent:
      return "silent";
  }
  return "?";
}

}  // namespace

TEST_CASE("a clock of the time in which the process ran passes over a stop") {
  RunClock clock(100);
  CHECK(clock.look(5000) == 1);
  CHECK(clock.look(5060) == 61);
  CHECK(clock.look(5060) == 61);
  CHECK(clock.look(9'000'000) == 161);  // a stop, or nobody looked
  CHECK(clock.look(9'000'100) == 261);
  CHECK(clock.look(8'000'000) == 261);
  CHECK(clock.time() == 261);
}

TEST_CASE("the verdict on a peer, by what its socket shows and since when data stand still") {
  constexpr std::int64_t kLimit = 40000, kForEver = 1'000'000'000;
  struct Row {
    PeerSign sign;
    std::int64_t silence_ms, stall_ms;
    bool outstanding;
    Verdict verdict;
  };
  using S = PeerSign;
  using V = Verdict;
  const Row rows[] = {
      // Its host answers: a peer may take its time.
      {S::quiet, 0, 0, false, V::fine},
      {S::quiet, 900, 0, true, V::fine},
      {S::quiet, 900, kForEver, true, V::fine},
      {S::talking, 900, kForEver, true, V::fine},
      // The end is final, whatever else is known.
      {S::ended, 0, 0, false, V::ended},
      {S::ended, 0, 0, true, V::ended},
      {S::ended, kForEver, kForEver, true, V::ended},
      {S::reset, 0, 0, false, V::reset},
      {S::reset, 900, 0, true, V::reset},
      // Silence, and nothing is expected.
      {S::quiet, 4000, kForEver, false, V::fine},
      {S::quiet, kForEver, kForEver, false, V::fine},
      {S::unreachable, 0, kForEver, false, V::fine},
      // Silence, and data move.
      {S::quiet, 4200, 0, true, V::fine},
      {S::quiet, kForEver, 0, true, V::fine},
      {S::quiet, kForEver, 4999, true, V::fine},
      {S::unreachable, 0, 0, true, V::fine},
      {S::unreachable, kForEver, 4999, true, V::fine},
      // Data have long stood still, and the host has just gone silent.
      {S::quiet, 2999, kForEver, true, V::fine},
      {S::quiet, 4999, kForEver, true, V::fine},
      {S::quiet, 5000, kForEver, true, V::suspect},
      {S::quiet, 39999, kForEver, true, V::suspect},
      {S::quiet, kForEver, 5000, true, V::suspect},
      {S::quiet, kForEver, 39999, true, V::suspect},
      {S::unreachable, 0, 5000, true, V::suspect},
      {S::unreachable, 0, 39999, true, V::suspect},
      // Both for the limit.
      {S::quiet, 40000, 40000, true, V::silent},
      {S::talking, 40000, 40000, true, V::silent},
      {S::quiet, kForEver, kForEver, true, V::silent},
      {S::unreachable, 0, 40000, true, V::silent},
  };
  for (const Row& r : rows) {
    CAPTURE(static_cast<int>(r.sign), r.silence_ms, r.stall_ms, r.outstanding);
    CHECK(std::string(name(judge({r.sign, r.silence_ms, r.stall_ms, r.outstanding, kLimit}))) ==
          name(r.verdict));
  }
}

namespace {

// Somebody who looks every 100 ms.
struct Looker {
  PeerWatch watch{10000};
  std::int64_t now = 5 * kSecond;
  std::uint64_t progress = 0;
  Verdict last = Verdict::fine;

  // Of a peer whose host was last heard `silence_ms` before each look; `moves`: data move.
  void look_for(std::int64_t ms, std::int64_t silence_ms, bool moves = false,
                bool outstanding = true) {
    for (std::int64_t t = 0; t < ms; t += 100) {
      now += 100 * kMillisecond;
      if (moves) ++progress;
      last = watch.look(PeerSign::quiet, silence_ms, now, outstanding, progress);
    }
  }
};

constexpr std::int64_t kLong = 1'000'000;

}  // namespace

TEST_CASE("a peer that is silent while somebody looks is suspected, then lost") {
  Looker l;
  l.look_for(2500, kLong);
  CHECK(l.last == Verdict::fine);
  l.look_for(1500, kLong);
  CHECK(l.last == Verdict::suspect);
  l.look_for(4500, kLong);
  CHECK(l.last == Verdict::suspect);
  l.look_for(2500, kLong);
  CHECK(l.last == Verdict::silent);
}

TEST_CASE("data that move, an answer, or nothing to wait for begin the time anew") {
  Looker l;
  SECTION("data") {
    l.look_for(9000, kLong);
    l.look_for(100, kLong, true);
    CHECK(l.last == Verdict::fine);
    l.look_for(9000, kLong);
    CHECK(l.last == Verdict::suspect);
  }
  SECTION("an answer") {
    l.look_for(9000, kLong);
    l.look_for(100, 300);
    CHECK(l.last == Verdict::fine);
    l.look_for(9000, kLong);
    CHECK(l.last == Verdict::suspect);
  }
  SECTION("idle") {
    l.look_for(60000, kLong, false, false);
    CHECK(l.last == Verdict::fine);
    l.look_for(9000, kLong);
    CHECK(l.last == Verdict::suspect);
  }
  l.look_for(60000, kLong, true);
  CHECK(l.last == Verdict::fine);
}

TEST_CASE("who was stopped for a minute does not take it for the peer's silence") {
  Looker l;
  l.look_for(1000, 300);
  l.now += 60 * kSecond;
  l.look_for(100, kLong);
  CHECK(l.last == Verdict::fine);
  l.look_for(1500, kLong);
  CHECK(l.last == Verdict::fine);
  l.look_for(20000, kLong);
  CHECK(l.last == Verdict::silent);
}

}  // namespace twinpath
