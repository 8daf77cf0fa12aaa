// Parts of a connection's failover, each alone: which queues cannot be used, what both ends have
// said in a round, and what is asked of the peer's process.
#include "proxy/connect/failover_round.h"
#include "proxy/connect/peer_questions.h"
#include "proxy/connect/queue_health.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr QueueMask kAll = 0b1111;

TEST_CASE("Queues on ports that are down, and those that failed lately, cannot be used") {
  QueueHealth health;
  CHECK(health.unusable(kAll, 1) == 0);
  health.ports(0b10, 0b01, 4, [](int q) { return q % 2; });
  CHECK(health.down() == 0b1010);
  CHECK(health.moved() == 0b0101);  // they are made anew, which is what they need
  CHECK(health.unusable(kAll, 1) == 0b1010);
  health.failed(0, 100, 10, 100);
  CHECK(health.unusable(kAll, 109) == 0b1011);
  CHECK(health.unusable(kAll, 110) == 0b1010);
  // A doubtful one is better than none.
  health.failed(2, 100, 10, 100);
  CHECK(health.unusable(kAll, 109) == 0b1010);
  health.ports(0, 0, 4, [](int q) { return q % 2; });
  CHECK(health.unusable(kAll, 109) == 0b0101);
  health.forgive(0b0001);
  CHECK(health.unusable(kAll, 109) == 0b0100);
}

TEST_CASE("A queue that fails again and again is left out twice as long each time, up to a limit") {
  QueueHealth health;
  std::int64_t now = 1000;
  for (const std::int64_t pause : {10, 20, 40, 80, 100, 100}) {
    CAPTURE(now, pause);
    health.failed(3, now, 10, 100);
    CHECK(health.next_try(0b1000, now) == now + pause);
    CHECK(health.next_try(0b0111, now) == 0);
    now += pause;
    CHECK(health.next_try(0b1000, now) == 0);
  }
  // Within the longest pause after the last time it is the old trouble, beyond that a new one.
  health.failed(3, now + 100, 10, 100);
  CHECK(health.next_try(kAll, now + 100) == now + 200);
  health.failed(3, now + 301, 10, 100);
  CHECK(health.next_try(kAll, now + 301) == now + 311);
  health.failed(1, now + 301, 50, 100);
  CHECK(health.next_try(kAll, now + 301) == now + 311);
}

TEST_CASE("Ports are asked after an adapter told of a change, and now and then") {
  QueueHealth health;
  CHECK(health.look_due(0, 5, 100));
  CHECK(health.looked() == 5);
  CHECK_FALSE(health.look_due(0, 104, 100));
  CHECK(health.look_due(0, 105, 100));
  CHECK(health.look_due(1, 106, 100));
  CHECK_FALSE(health.look_due(1, 107, 100));
  health.look_anew();
  CHECK(health.look_due(1, 107, 100));
}

StopNote stop(std::uint32_t round, QueueMask unwanted) { return {round, unwanted, 0, {}}; }
FencedNote fence(std::uint32_t round, QueueMask made) {
  FencedNote note;
  note.round = round;
  note.made = made;
  return note;
}

TEST_CASE("A round leaves out what either end cannot use, as it stood when both had stopped") {
  FailoverRound round;
  round.begin(round.next(), 0b0011);
  CHECK(round.number() == 1);
  CHECK_FALSE(round.agree());
  round.hear(stop(1, 0b0100));
  REQUIRE(round.agree());
  CHECK(round.unwanted() == 0b0111);
  round.leave_to_peer(0b0001);
  CHECK(round.mine() == 0b0010);
  CHECK(round.unwanted() == 0b0111);
}

TEST_CASE("What was said in another round counts for nothing") {
  FailoverRound round;
  round.begin(5, 0);
  round.hear(stop(4, 0));
  round.hear(fence(6, 1));
  round.hear_ready(4);
  CHECK_FALSE(round.agree());
  CHECK(round.their_fence() == nullptr);
  CHECK_FALSE(round.they_are_ready());
  round.hear(stop(5, 0));
  round.hear(fence(5, 0b1001));
  round.hear_ready(5);
  round.hear_ready(4);
  CHECK(round.agree());
  REQUIRE(round.their_fence() != nullptr);
  CHECK(round.they_are_ready());
  CHECK(round.take_fence().made == 0b1001);
  round.begin(6, 0);
  CHECK_FALSE(round.agree());
  CHECK(round.their_fence() == nullptr);
  CHECK_FALSE(round.they_are_ready());
}

TEST_CASE("Which round is the later one is known when their numbers begin anew") {
  FailoverRound round;
  round.begin(~0u, 0);
  CHECK(round.ahead(~0u) == 0);
  CHECK(round.ahead(0) > 0);
  CHECK(round.ahead(~0u - 1) < 0);
  CHECK(round.next() == 0);
}

TEST_CASE("A peer is woken when a wait has lasted, and then after twice as long each time") {
  PeerQuestions peer;
  const std::int64_t first = 300 * kMillisecond;
  std::int64_t now = kSecond;
  CHECK_FALSE(peer.wake_due(now, 7, first));
  for (const std::int64_t pause : {300, 600, 1200, 2000, 2000}) {
    CAPTURE(pause);
    CHECK_FALSE(peer.wake_due(now + pause * kMillisecond - 1, 7, first));
    now += pause * kMillisecond;
    CHECK(peer.wake_due(now, 7, first));
  }
  // Something was achieved: another wait.
  CHECK_FALSE(peer.wake_due(now + 10 * kSecond, 8, first));
  CHECK(peer.wake_due(now + 10 * kSecond + first, 8, first));
  // A limit that is longer than the longest pause stands.
  PeerQuestions patient;
  CHECK_FALSE(patient.wake_due(1, 0, 5 * kSecond));
  CHECK(patient.wake_due(1 + 5 * kSecond, 0, 5 * kSecond));
  CHECK_FALSE(patient.wake_due(10 * kSecond, 0, 5 * kSecond));
  CHECK(patient.wake_due(1 + 10 * kSecond, 0, 5 * kSecond));
}

TEST_CASE("A process has answered when that came behind the last question") {
  PeerQuestions peer;
  CHECK_FALSE(peer.asked_since(1));
  peer.asked(100);
  CHECK(peer.asked_since(100));
  CHECK_FALSE(peer.asked_since(101));
  CHECK_FALSE(peer.answered_for(0, 150));
  peer.answered(120);
  CHECK(peer.answered_for(30, 150));
  CHECK_FALSE(peer.answered_for(31, 150));
  peer.asked(160);
  CHECK_FALSE(peer.answered_for(30, 200));
  CHECK_FALSE(peer.looks(0));
  peer.look_until(50);
  CHECK(peer.looks(49));
  CHECK_FALSE(peer.looks(50));
}

}  // namespace
}  // namespace twinpath
