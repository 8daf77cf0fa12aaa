// The sender's end of the ring of clear-to-send cells, alone: the receiver is whoever writes cells
// into the array.
#include "proxy/send/cts_ring.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr MetaParts kLone{0, 0, 0, 1, false, true};

class Ring {
 public:
  explicit Ring(int rails = 1) : layout_(rails), memory_(new Line[kCtsCells]) {}

  void write(std::uint64_t seq, int tag, MetaParts parts = kLone, std::uint32_t parcels = 0) {
    layout_.fill(begin() + layout_.offset(seq), 0x1000 + seq, 64, tag, cell_meta(parts, parcels),
                 seq, [](int) { return 7u; });
  }
  // Where cell `seq` would lie if the ring were longer.
  void write_beyond(std::uint64_t seq, MetaParts parts) {
    layout_.fill(begin() + layout_.stride() * seq, 0, 64, 7, cell_meta(parts, 0), seq,
                 [](int) { return 7u; });
  }
  // An irecv of `members` from cell `seq` on, under tags 0, 1, ...
  void write_group(std::uint64_t seq, unsigned members, std::uint32_t parcels = 0) {
    for (unsigned i = 0; i < members; ++i)
      write(seq + i, static_cast<int>(i), {5, i, 9, members, false, true}, parcels);
  }
  CtsRing reader() const { return CtsRing(begin(), layout_); }

 private:
  struct alignas(64) Line {
    std::uint8_t bytes[64] = {};
  };
  // Of all lines, not of the first one's array.
  std::uint8_t* begin() const { return reinterpret_cast<std::uint8_t*>(memory_.get()); }
  CtsLayout layout_;
  std::unique_ptr<Line[]> memory_;
};

std::vector<std::uint64_t> use_all(CtsRing& ring, const std::vector<int>& tags) {
  std::vector<std::uint64_t> cells;
  for (const int tag : tags) {
    std::uint64_t seq = 0;
    if (!ring.find(tag, seq)) break;
    ring.use(seq);
    cells.push_back(seq);
  }
  return cells;
}

TEST_CASE("Cells are seen in the order of their numbers, whichever was written first") {
  for (const int rails : {1, 2}) {
    Ring memory(rails);
    CtsRing ring = memory.reader();
    CHECK_FALSE(ring.ready());
    memory.write(1, 1);
    CHECK_FALSE(ring.ready());
    memory.write(0, 0);
    CHECK(ring.ready());
    CHECK(ring.seen() == 1);
    CHECK(ring.cell(0).address() == 0x1000);
    CHECK(use_all(ring, {0, 1}) == std::vector<std::uint64_t>{0, 1});
    CHECK_FALSE(ring.see());
    // The next round's cell in the same place, not the last round's.
    for (std::uint64_t seq = 2; seq < kCtsCells; ++seq) memory.write(seq, 0);
    while (ring.see()) {
    }
    CHECK(ring.seen() == kCtsCells);
    memory.write(kCtsCells, 0);
    CHECK(ring.see());
    CHECK_FALSE(ring.see());
  }
}

TEST_CASE("A message takes the first unused cell of its tag, and the head passes what is used") {
  Ring memory;
  for (std::uint64_t seq = 0; seq < 6; ++seq) memory.write(seq, seq % 2 == 0 ? 10 : 11);
  CtsRing ring = memory.reader();
  CHECK(use_all(ring, {11, 11}) == std::vector<std::uint64_t>{1, 3});
  CHECK(ring.head() == 0);
  CHECK(ring.used_ahead() == 2);
  CHECK(ring.used(1));
  CHECK_FALSE(ring.used(2));
  CHECK(use_all(ring, {10}) == std::vector<std::uint64_t>{0});
  CHECK(ring.head() == 2);
  CHECK(ring.used_ahead() == 1);
  CHECK(use_all(ring, {12}).empty());
  CHECK(ring.seen() == 6);
  CHECK(use_all(ring, {10, 10, 11}) == std::vector<std::uint64_t>{2, 4, 5});
  CHECK(ring.head() == 6);
  CHECK(ring.used_ahead() == 0);
}

TEST_CASE("Any order of tags uses each cell once, and one tag's in order") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Ring memory;
    CtsRing ring = memory.reader();
    std::uint64_t written = 0;
    std::map<int, std::vector<std::uint64_t>> unused;  // by tag
    std::set<std::uint64_t> used;
    for (int step = 0; step < 2000; ++step) {
      CAPTURE(seed, step);
      const int tag = static_cast<int>(random() % 4);
      if (written - ring.head() < kCtsCells && random() % 2 == 0) {
        memory.write(written, tag);
        unused[tag].push_back(written++);
        continue;
      }
      std::uint64_t seq = 0;
      std::vector<std::uint64_t>& mine = unused[tag];
      REQUIRE(ring.find(tag, seq) == !mine.empty());
      if (mine.empty()) continue;
      REQUIRE(seq == mine.front());
      mine.erase(mine.begin());
      ring.use(seq);
      REQUIRE(used.insert(seq).second);
      const auto gap = [&] {
        std::uint64_t first = 0;
        for (const std::uint64_t n : used) first += n == first;
        return first;
      }();
      REQUIRE(ring.head() == gap);
      REQUIRE(static_cast<std::size_t>(ring.used_ahead()) == used.size() - gap);
    }
  }
}

TEST_CASE("A cell that claims parcels which were never sent is not taken") {
  Ring memory;
  memory.write(0, 0, kLone, 1);
  CtsRing ring = memory.reader();
  CHECK_FALSE(ring.see());
  CHECK(ring.lies());
  CHECK(ring.seen() == 0);
  (void)ring.take_credit();
  CHECK_FALSE(ring.lies());
  CHECK(ring.seen() == 1);
  // When queues are replaced what has come is noted all the same: both ends begin anew.
  memory.write(1, 0, kLone, 200);
  memory.write(2, 0, kLone, 0);
  CHECK(ring.lies());
  ring.see_all();
  CHECK(ring.seen() == 3);
}

TEST_CASE("Parcels are sent on what cells say of those before, and further cells are asked") {
  Ring memory;
  CtsRing ring = memory.reader();
  for (unsigned number = 0; number < kParcelPlaces; ++number) {
    REQUIRE(ring.find_credit());
    CHECK(unsigned{ring.take_credit()} == number);
  }
  CHECK_FALSE(ring.any_credit());
  CHECK_FALSE(ring.find_credit());
  memory.write(0, 0, kLone, 0);
  CHECK_FALSE(ring.find_credit());
  CHECK(ring.seen() == 1);
  memory.write(1, 0, kLone, 1);
  memory.write(2, 0, kLone, 2);
  CHECK(ring.find_credit());
  CHECK(ring.seen() == 2);  // no further than need be
  ring.count_parcels_anew();
  CHECK(ring.any_credit());
  CHECK(unsigned{ring.take_credit()} == 0);
}

TEST_CASE("A group is whole when all its cells are here and say the same but for their part") {
  const auto whole = [](auto&& change, std::uint64_t begin = 0) {
    Ring memory;
    for (std::uint64_t seq = 0; seq < begin; ++seq) memory.write(seq, 0);
    CtsRing ring = memory.reader();
    for (std::uint64_t seq = 0; seq < begin; ++seq) CHECK(use_all(ring, {0}).size() == 1);
    memory.write_group(begin, 8);
    change(memory);
    REQUIRE(ring.ready());
    const bool all = ring.see_group(ring.cell(ring.head()).meta());
    CHECK(ring.seen() == begin + (all ? 8 : 1));
    return all;
  };
  CHECK(whole([](Ring&) {}));
  // Not here yet, though its place holds a like one.
  CHECK_FALSE(whole([](Ring& m) { m.write(7 + kCtsCells, 7, {5, 7, 9, 8, false, true}); }));
  CHECK_FALSE(whole([](Ring& m) { m.write(3, 3, {5, 3, 10, 8, false, true}); }));
  CHECK_FALSE(whole([](Ring& m) { m.write(3, 3, {5, 3, 9, 8, true, true}); }));
  CHECK_FALSE(whole([](Ring& m) { m.write(3, 3, {5, 3, 9, 8, false, false}); }));
  CHECK_FALSE(whole([](Ring& m) { m.write(3, 3, {5, 3, 9, 8, false, true}, 1); }));
  // To the end of the ring, and beyond it, where the rest would lie elsewhere.
  CHECK(whole([](Ring&) {}, kCtsCells - 8));
  CHECK_FALSE(whole(
      [](Ring& m) {
        m.write_beyond(kCtsCells, {5, 7, 9, 8, false, true});
      },
      kCtsCells - 7));
}

TEST_CASE(
    "How far cells are used is told every so often, until receives without notice are covered") {
  UsedReport report;
  CHECK(report.due_at() == UsedReport::kNever);
  CHECK_FALSE(report.needed());
  report.answered(3);
  CHECK(report.needed());
  CHECK(report.due_at() == kUsedPeriod);
  report.told(kUsedPeriod);
  CHECK(report.due_at() == UsedReport::kNever);
  // One beyond what can be told: it is told again, each period.
  report.answered(3 * kUsedPeriod);
  CHECK(report.due_at() == 2 * kUsedPeriod);
  report.told(2 * kUsedPeriod);
  CHECK(report.due_at() == 3 * kUsedPeriod);
  report.told(3 * kUsedPeriod);
  CHECK(report.due_at() == 4 * kUsedPeriod);
  report.told(4 * kUsedPeriod);
  CHECK(report.due_at() == UsedReport::kNever);
  CHECK(report.needed());
}

TEST_CASE("Receives without notice never leave the receiver without room for good") {
  // A place comes free by its message's notice, or by a report that covers it.  The few cells of
  // tag 0 bring no notice, and their messages come as soon as they can.
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Ring memory;
    CtsRing ring = memory.reader();
    std::uint64_t written = 0, told = 0;
    std::set<std::uint64_t> noted;
    for (int step = 0; step < 5000; ++step) {
      CAPTURE(seed, step, ring.head(), told);
      const auto room = [&] {
        return written < kCtsCells || written - kCtsCells < told ||
               noted.count(written - kCtsCells) != 0;
      };
      for (; room(); ++written)
        memory.write(written, random() % 64 == 0 ? 0 : static_cast<int>(1 + random() % 2));
      REQUIRE(ring.ready());  // else both ends wait for each other
      std::uint64_t seq = 0;
      if (!ring.find(0, seq) && !ring.find(static_cast<int>(1 + random() % 2), seq))
        seq = ring.head();
      if (ring.cell(seq).tag() == 0)
        ring.report().answered(seq);
      else
        noted.insert(seq);
      ring.use(seq);
      if (!ring.report_due()) continue;
      told = ring.head();
      ring.report().told(told);
    }
  }
}

TEST_CASE("A cell's number is known by its low half") {
  constexpr std::uint64_t k32 = std::uint64_t{1} << 32;
  CHECK(whole_number(5, 3) == 3);
  CHECK(whole_number(5, 5) == 5);
  CHECK(whole_number(k32 + 5, 3) == k32 + 3);
  CHECK(whole_number(k32 + 5, 0xffffffff) == k32 - 1);
  CHECK(whole_number(3 * k32, 0xfffffffe) == 3 * k32 - 2);
}

}  // namespace
}  // namespace twinpath
