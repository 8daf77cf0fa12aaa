// WAIT: one queue holds back until another has written a CQE.
#include <cstdint>

#include "gda/served/front/work_queue.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"

using namespace twinpath::gda;

namespace {

constexpr auto kNoCqe = static_cast<Syndrome>(0xff);

std::uint64_t nop(Queue& queue) {
  return queue.post([&](std::uint64_t i) { return make_nop(i, queue.device.qpn); });
}
std::uint64_t wait(Queue& queue, const Queue& target, std::uint64_t index) {
  return queue.post([&](std::uint64_t i) {
    return make_wait(i, queue.device.qpn, index, target.device.cq.number);
  });
}

}  // namespace

TEST_CASE("WAIT holds back its own queue alone, until the CQE is there") {
  Rig rig;
  RecordingBackEnd companion_end;
  Queue& main = rig.make();
  Queue& companion = rig.make(16, &companion_end);
  nop(companion);
  wait(companion, main, 1);
  nop(companion);
  CHECK(companion.front->scan(64) == 1);
  nop(main);
  nop(main);
  CHECK(main.front->scan(64) == 2);
  main.front->complete(0);
  CHECK(companion.front->scan(64) == 0);
  main.front->complete(1);
  CHECK(companion.front->scan(64) == 2);
  CHECK(companion_end.seen.size() == 2);  // the WAIT reaches no back end

  // Its CQE comes in its turn.
  CHECK(companion.result(1) == kNoCqe);
  companion.front->complete(0);
  CHECK(companion.result(1) == Syndrome::none);
  CHECK(companion.result(2) == kNoCqe);
  companion.front->complete(2);
  CHECK(companion.result(2) == Syndrome::none);
}

TEST_CASE("WAIT at the head with nothing before it completes by itself") {
  Rig rig;
  Queue& main = rig.make();
  Queue& companion = rig.make();
  nop(main);
  main.front->scan(64);
  main.front->complete(0);
  wait(companion, main, 0);
  CHECK(companion.front->scan(64) == 1);
  CHECK(companion.result(0) == Syndrome::none);
}

TEST_CASE("WAIT works over the wrap of its 32 bits") {
  Rig rig;
  const std::uint64_t first = (std::uint64_t{1} << 32) - 3;
  Queue& main = rig.make(16, nullptr, DoorbellKind::count, 0, first);
  Queue& companion = rig.make();
  for (std::uint64_t i = first; i < first + 8; ++i) {
    REQUIRE(nop(main) == i);
    wait(companion, main, i);
    main.front->scan(64);
    CHECK(companion.front->scan(64) == 0);
    main.front->complete(i);
    CHECK(companion.front->scan(64) == 1);
    CHECK(companion.result(i - first) == Syndrome::none);
  }
  // Long past, on the other side of the wrap.
  wait(companion, main, first);
  CHECK(companion.front->scan(64) == 1);
  CHECK_FALSE(companion.front->failed());
}

TEST_CASE("WAIT may come before the WQE it waits for has been rung") {
  Rig rig;
  Queue& main = rig.make();
  Queue& companion = rig.make();
  wait(companion, main, 15);
  CHECK(companion.front->scan(64) == 0);
  for (int i = 0; i < 16; ++i) nop(main);
  main.front->scan(64);
  main.front->complete(15);
  CHECK(companion.front->scan(64) == 1);
}

TEST_CASE("WAIT that could never end is an error") {
  Rig rig;
  Queue& a = rig.make();
  Queue& b = rig.make();
  Queue& c = rig.make();
  SECTION("ring of two") {
    wait(a, b, 0);
    wait(b, a, 0);
    CHECK(a.front->scan(64) == 0);
    b.front->scan(64);
    CHECK(b.result(0) == Syndrome::local_qp_operation);
    CHECK(a.front->scan(64) == 1);  // b's error CQE is a CQE
    CHECK_FALSE(a.front->failed());
  }
  SECTION("ring of three, behind other WQEs") {
    nop(c);
    c.front->scan(64);
    c.front->complete(0);
    wait(a, b, 0);
    wait(b, c, 3);
    nop(c);
    wait(c, a, 2);
    a.front->scan(64);
    b.front->scan(64);
    c.front->scan(64);
    CHECK(c.front->failed());
    CHECK_FALSE(a.front->failed());
    CHECK_FALSE(b.front->failed());
  }
  SECTION("no ring: the CQE awaited comes before the other's WAIT") {
    nop(a);
    wait(a, b, 0);
    wait(b, a, 0);
    a.front->scan(64);
    b.front->scan(64);
    CHECK_FALSE(a.front->failed());
    CHECK_FALSE(b.front->failed());
    a.front->complete(0);
    CHECK(b.front->scan(64) == 1);
    CHECK(a.front->scan(64) == 1);
  }
}

TEST_CASE("WAIT for a queue that failed ends, so that counters do not hang") {
  Rig rig;
  Queue& main = rig.make();
  Queue& companion = rig.make();
  nop(main);
  nop(main);
  main.front->scan(64);
  wait(companion, main, 1);
  wait(companion, main, 2);
  CHECK(companion.front->scan(64) == 0);
  main.front->fail(0, Syndrome::retry_exceeded);
  CHECK(companion.front->scan(64) == 2);
  CHECK_FALSE(companion.front->failed());
}

TEST_CASE("A refused WQE behind a WAIT is reported in its turn") {
  Rig rig;
  Queue& main = rig.make();
  Queue& companion = rig.make();
  wait(companion, main, 0);
  companion.post([&](std::uint64_t i) { return make_nop(i, companion.device.qpn ^ 1); });
  companion.front->scan(64);
  CHECK_FALSE(companion.front->failed());
  nop(main);
  main.front->scan(64);
  main.front->complete(0);
  companion.front->scan(64);
  CHECK(companion.result(0) == Syndrome::none);
  CHECK(companion.result(1) == Syndrome::local_qp_operation);
}
