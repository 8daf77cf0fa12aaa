// Small parts of a sender, each alone: which messages are timed, and the cells of answers that may
// have to be sent again.
#include <array>

#include "proxy/send/kept_cells.h"
#include "proxy/send/message_timer.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

TEST_CASE("The first message is timed, and then one in so many by its size") {
  for (const bool large : {false, true}) {
    CAPTURE(large);
    const std::size_t bytes = counters::kSmallBytes + (large ? 1 : 0);
    const std::uint64_t every = large ? counters::kTimedLarge : counters::kTimedSmall;
    MessageTimer timer;
    std::uint64_t last = 0;
    for (std::uint64_t number = 1; number <= 3 * every; ++number) {
      // Whoever asks how long none is due is told the same.
      const bool none = number <= timer.last_before();
      const bool due = timer.due(number, bytes);
      CHECK(due != none);
      if (!due) continue;
      CHECK((last == 0 ? number == 1 : number - last == every + 1));
      CHECK_FALSE(timer.due(number, bytes));
      last = number;
    }
    CHECK(last == 2 * every + 3);
  }
}

TEST_CASE("One message is timed at a time") {
  MessageTimer timer;
  CHECK_FALSE(timer.running());
  timer.start(100);
  CHECK(timer.running());
  CHECK(timer.took(150) == 50);
  timer.stop();
  CHECK_FALSE(timer.running());
}

struct KeptRing {
  explicit KeptRing(int rails) : layout(rails), kept(cells.data(), layout) {}
  void write(std::uint64_t seq, std::uint64_t address, std::uint32_t bytes) {
    layout.fill(kept.in_ring(seq), address, bytes, 3, 0, seq,
                [](int rail) { return 70u + static_cast<unsigned>(rail); });
  }
  alignas(8) std::array<std::uint8_t, sizeof(WideCell) * kCtsCells> cells{};
  CtsLayout layout;
  KeptCells kept;
};

TEST_CASE("A copy of a cell stays when its place in the ring is used again") {
  for (const int rails : {1, 2}) {
    CAPTURE(rails);
    KeptRing ring(rails);
    ring.write(7, 0x7000, 64);
    ring.write(8, 0x8000, 65);
    ring.kept.keep(0, CellView(ring.kept.in_ring(7)));
    ring.kept.keep(kSendSlots - 1, CellView(ring.kept.in_ring(8)));
    ring.write(7 + kCtsCells, 0x9000, 66);
    CHECK(CellView(ring.kept.in_ring(7)).address() == 0x9000);
    const CellView first(ring.kept.copy(0)), last(ring.kept.copy(kSendSlots - 1));
    CHECK(first.address() == 0x7000);
    CHECK(first.rkey(rails - 1) == 70u + static_cast<unsigned>(rails - 1));
    CHECK(last.address() == 0x8000);
    CHECK(last.bytes() == 65);
  }
}

TEST_CASE(
    "A cell gets the keys that its memory has now, which must be told once keys have changed") {
  const KeyRange memory{0x7000, 64, {5, 6}};
  KeptRing ring(2);
  ring.write(0, 0x7000, 64);
  ring.write(1, 0x7001, 64);
  ring.write(2, 0, 0);
  std::uint8_t* const known = ring.kept.in_ring(0);
  std::uint8_t* const beyond = ring.kept.in_ring(1);
  CHECK(ring.kept.renew(known, {&memory, 1}));
  CHECK(CellView(known).rkey(0) == 5);
  CHECK(CellView(known).rkey(1) == 6);
  CHECK(ring.kept.renew(beyond, {&memory, 1}));
  CHECK(CellView(beyond).rkey(0) == 70);
  ring.kept.keys_change();
  CHECK(ring.kept.renew(known, {&memory, 1}));
  CHECK_FALSE(ring.kept.renew(beyond, {&memory, 1}));
  CHECK(ring.kept.renew(ring.kept.in_ring(2), {}));
}

}  // namespace
}  // namespace twinpath
