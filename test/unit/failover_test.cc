// What two ends say when queues are replaced: whole, cut short, and turned over bit by bit.
#include "proxy/wire/failover.h"

#include <algorithm>

#include "plugin/base/clock.h"
#include "proxy/connect/stop_clock.h"
#include "test/support/catch.h"

using namespace twinpath;

namespace {

std::span<const std::uint8_t> body_of(const std::vector<std::uint8_t>& frame) {
  return std::span(frame).subspan(kFailoverHeader);
}

FencedNote some_fence() {
  FencedNote note;
  note.round = 7;
  note.held.begin = (std::uint64_t{1} << 40) + 5;
  note.held.end = note.held.begin + 200;
  note.held.set_open(note.held.begin);
  note.held.set_open(note.held.begin + 199);
  note.made = 0b1011;
  note.queues = {{0x10, 0xffffff}, {0x11, 1}, {0xffffff, 0}};
  HelloRail rail;
  rail.port = "mlx5_0:1";
  rail.lid = 9;
  rail.mtu = IBV_MTU_4096;
  rail.gid.raw[15] = 3;
  rail.gid_index = 2;
  rail.roce = true;
  rail.speed_mbps = 400000;
  note.rails = {rail, rail};
  note.rails[1].port = "mlx5_1:1";
  note.key_rails = 2;
  note.memory = {{4096, 4096, {5, 6}}, {0x7f0000000000, std::uint64_t{1} << 40, {77, 78}}};
  return note;
}

}  // namespace

TEST_CASE("words about queues arrive as they were said", "[failover]") {
  const auto stop = encode_failover(StopNote{3, 0b101, 0b100, "soft0:1 is down\n"});
  CHECK(stop[0] == kFailoverByte);
  CHECK(stop[1] == static_cast<std::uint8_t>(FailoverKind::stop));
  CHECK(failover_frame_bytes(stop) == stop.size());
  StopNote stopped;
  REQUIRE(decode_failover(body_of(stop), stopped));
  CHECK(stopped.round == 3);
  CHECK(stopped.unwanted == 0b101);
  CHECK(stopped.down == 0b100);
  CHECK(stopped.why == "soft0:1 is down?");  // it goes into a log

  const FencedNote note = some_fence();
  const auto frame = encode_failover(note);
  CHECK(frame.size() < kMostFailoverBody);
  FencedNote fenced;
  REQUIRE(decode_failover(body_of(frame), fenced));
  CHECK(fenced.round == note.round);
  CHECK(fenced.held.begin == note.held.begin);
  CHECK(fenced.held.end == note.held.end);
  CHECK(fenced.held.open == note.held.open);
  CHECK(fenced.made == note.made);
  REQUIRE(fenced.queues.size() == 3);
  CHECK(fenced.queues[2].qpn == 0xffffff);
  REQUIRE(fenced.rails.size() == 2);
  CHECK(fenced.rails[1].port == "mlx5_1:1");
  CHECK(fenced.rails[1].speed_mbps == 400000);

  REQUIRE(fenced.key_rails == 2);
  REQUIRE(fenced.memory.size() == 2);
  CHECK(fenced.memory[1].address == 0x7f0000000000);
  CHECK(fenced.memory[1].bytes == std::uint64_t{1} << 40);
  CHECK(fenced.memory[1].rkeys == std::array<std::uint32_t, kMaxRails>{77, 78});

  const auto ready = encode_ready(9);
  std::uint32_t round = 0;
  REQUIRE(decode_ready(body_of(ready), round));
  CHECK(round == 9);
}

TEST_CASE("what a receiver awaits is told by cell, round the ring", "[failover]") {
  HeldState held;
  held.begin = 1020;  // 1024 is place 0
  held.end = 1040;
  held.set_open(1023);
  held.set_open(1024);
  CHECK(held.awaits(1023));
  CHECK(held.awaits(1024));
  CHECK_FALSE(held.awaits(1022));
  CHECK_FALSE(held.awaits(1023 - kCtsCells));  // complete: an earlier use of the place
  CHECK_FALSE(held.awaits(0));
}

TEST_CASE("a range of memory covers what lies wholly in it", "[failover]") {
  const KeyRange range{4096, 100, {}};
  CHECK(range.covers(4096, 100));
  CHECK(range.covers(4195, 1));
  CHECK(range.covers(4196, 0));
  CHECK_FALSE(range.covers(4095, 1));
  CHECK_FALSE(range.covers(4096, 101));
  CHECK_FALSE(range.covers(4197, 0));
  CHECK_FALSE(range.covers(0, 1));
  CHECK_FALSE(range.covers(~std::uint64_t{0}, 2));
}

TEST_CASE("the largest word about queues fits", "[failover]") {
  FencedNote note = some_fence();
  note.made = ~QueueMask{0};
  note.queues.assign(kMaxQps, {1, 2});
  note.rails.assign(kMaxRails, note.rails[0]);
  for (HelloRail& rail : note.rails) rail.port = std::string(63, 'x');
  note.key_rails = kMaxRails;
  note.memory.assign(kMostKeyRanges, note.memory[0]);
  const auto frame = encode_failover(note);
  CHECK(frame.size() <= kFailoverHeader + kMostFailoverBody);
  CHECK(failover_frame_bytes(frame) == frame.size());
  FencedNote read;
  REQUIRE(decode_failover(body_of(frame), read));
  CHECK(read.memory.size() == kMostKeyRanges);
  note.memory.push_back(note.memory[0]);
  CHECK_FALSE(decode_failover(body_of(encode_failover(note)), read));
}

TEST_CASE("no damaged word about queues is read beyond its end", "[failover]") {
  const auto frame = encode_failover(some_fence());
  const auto body = body_of(frame);
  FencedNote note;
  for (std::size_t n = 0; n < body.size(); ++n) CHECK_FALSE(decode_failover(body.first(n), note));
  // A bit more in the mask of queues asks for an address that is not there.
  for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
    std::vector<std::uint8_t> damaged(body.begin(), body.end());
    damaged[bit / 8] = static_cast<std::uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
    if (!decode_failover(damaged, note)) continue;
    CHECK(note.queues.size() <= static_cast<std::size_t>(kMaxQps));
    CHECK((!note.rails.empty() && note.rails.size() <= static_cast<std::size_t>(kMaxRails)));
    for (const QueueAddress& q : note.queues) CHECK((q.qpn <= 0xffffff && q.psn <= 0xffffff));
  }
  for (std::size_t n = 0; n < kFailoverHeader; ++n)
    CHECK(failover_frame_bytes(std::span(frame).first(n)) == 0);
}

TEST_CASE("A stop says where its time went") {
  using Part = StopClock::Part;
  const auto ms = [](std::int64_t n) { return n * kMillisecond; };
  StopClock clock;
  clock.start(ms(1000));
  clock.turn(Part::agree, ms(1000));
  CHECK(clock.text(ms(1004)) == "4 ms");
  clock.turn(Part::drain, ms(1002));
  clock.turn(Part::renew, ms(1152));
  clock.turn(Part::exchange, ms(1170));
  clock.turn(Part::connect, ms(1175));
  CHECK(clock.total(ms(1186)) == ms(186));
  // 2 ms of agreement and 5 ms of exchange are less than a twentieth.
  CHECK(clock.text(ms(1186)) == "186 ms (drain 150, renew 18, connect 11)");

  // What was spent in one stop is not told of the next one; rounds add up.
  clock.start(ms(5000));
  clock.turn(Part::agree, ms(5000));
  clock.turn(Part::drain, ms(5010));
  clock.turn(Part::wait, ms(5010));
  clock.turn(Part::wait, ms(5300));
  clock.turn(Part::agree, ms(5610));
  clock.turn(Part::drain, ms(5620));
  clock.turn(Part::renew, ms(5620));
  clock.turn(Part::connect, ms(5620));
  clock.turn(Part::connect, ms(5700));
  CHECK(clock.text(ms(5720)) == "720 ms (connect 100, wait 600, 2 rounds)");

  // Nothing stands out where everything is short.
  clock.start(0);
  clock.turn(Part::agree, 0);
  CHECK(clock.text(ms(10)) == "10 ms (agree 10)");
}
