// Which messages leave together and when, alone: nothing is posted, and polls are numbers.
#include "proxy/send/coalescer.h"

#include <cstring>
#include <memory>
#include <vector>

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::uint16_t kNone = Coalescer::kNone;

CellMeta lone(unsigned slot = 0) { return CellMeta(cell_meta({slot, 0, 1, 1, false, true}, 0)); }
CellMeta member(unsigned sub, unsigned of, unsigned slot = 0) {
  return CellMeta(cell_meta({slot, sub, 1, of, false, true}, 0));
}

// What a comm has around it: requests, as far as they keep anything, and cells of 64 bytes.
struct World {
  Coalescer c;
  ProxyMemory memory;
  std::vector<std::uint16_t> before = std::vector<std::uint16_t>(32, kNone);
  std::uint16_t next = 0;  // slot

  bool add(CellMeta meta, std::uint32_t bytes = 8) {
    const Outgoing m{bytes_, &memory, CellView(), meta, bytes, next};
    return c.add(m, before[next++]);
  }
  bool add_plain(CellMeta meta, std::uint32_t bytes = 8) {
    const std::uint16_t slot = next++;
    return c.add_plain(bytes_, &memory, CellView(), meta, bytes, slot, before[slot]);
  }
  // As a comm does; the adapter gets it at once.
  std::uint16_t leave() {
    const std::uint16_t last = c.leave();
    forget(c.leaving());
    return last;
  }
  // Slots from the last one back.
  std::vector<std::uint16_t> chain(std::uint16_t last) const {
    std::vector<std::uint16_t> slots;
    for (; last != kNone; last = before[last]) slots.push_back(last);
    return slots;
  }
  static void forget(SendBatch& batch) { batch = {}; }

 private:
  std::uint8_t bytes_[64] = {};
};

TEST_CASE("A small message joins others while one is under way, and no longer") {
  World w;
  CHECK_FALSE(w.c.takes_small());
  w.c.small_left();
  CHECK(w.c.takes_small());
  w.c.small_left();
  w.c.small_arrived();
  CHECK(w.c.takes_small());
  w.c.small_arrived();
  CHECK_FALSE(w.c.takes_small());
  w.c.small_left();
  w.c.nothing_ahead();
  CHECK_FALSE(w.c.takes_small());
}

TEST_CASE("What waits behind a small message leaves one call after that one has arrived") {
  World w;
  w.c.small_left();
  CHECK_FALSE(w.add(lone()));
  CHECK_FALSE(w.c.due(1, false));
  w.c.small_arrived();
  // Not in the poll that brought the completion, but in the next one...
  CHECK_FALSE(w.c.due(2, false));
  CHECK_FALSE(w.c.due(2, false));
  CHECK(w.c.takes_small());
  SECTION("a poll") {
    CHECK(w.c.due(3, false));
    CHECK(w.leave() == 0);
  }
  SECTION("or with the next small message") {
    CHECK(w.add_plain(lone(1)));
    CHECK(w.chain(w.leave()) == std::vector<std::uint16_t>{1, 0});
  }
  // ...and that is itself what the next ones wait for.
  CHECK(w.c.takes_small());
  CHECK_FALSE(w.add(lone(2)));
  CHECK_FALSE(w.c.due(3, false));
  CHECK(w.chain(w.leave()).size() == 1);
}

TEST_CASE("Members of a group wait for each other, and what was held before them, too") {
  World w;
  w.c.small_left();
  CHECK_FALSE(w.add(lone(1)));
  w.c.small_arrived();
  CHECK_FALSE(w.c.due(1, false));  // would go with the next poll
  CHECK_FALSE(w.add(member(1, 3)));
  CHECK_FALSE(w.c.due(2, false));
  CHECK_FALSE(w.c.due(3, false));
  CHECK_FALSE(w.add(member(0, 3)));
  CHECK_FALSE(w.c.takes_small());
  CHECK(w.add(member(2, 3)));
  CHECK(w.chain(w.leave()) == std::vector<std::uint16_t>{3, 2, 1, 0});
  // Its next use begins anew.
  CHECK_FALSE(w.add(member(0, 2)));
  CHECK(w.add(member(1, 2)));
}

TEST_CASE("Groups that are sent at the same time are counted apart") {
  World w;
  CHECK_FALSE(w.add(member(0, 2, 5)));
  CHECK_FALSE(w.add(member(0, 2, 6)));
  CHECK(w.add(member(1, 2, 5)));
  (void)w.leave();
  CHECK(w.add(member(1, 2, 6)));
}

TEST_CASE("A full batch leaves, whatever it waits for") {
  World w;
  w.c.small_left();
  for (int i = 0; i < kSendBatch - 1; ++i) REQUIRE_FALSE(w.add(lone()));
  SECTION("with a message by itself") { CHECK(w.add(lone())); }
  SECTION("with a member of a group") { CHECK(w.add_plain(member(0, 8))); }
}

TEST_CASE("A member that goes by itself lets the others go when it is the last") {
  World w;
  CHECK_FALSE(w.c.releases(lone()));
  CHECK_FALSE(w.c.releases(member(0, 3)));
  CHECK_FALSE(w.add(member(1, 3)));
  CHECK(w.c.releases(member(2, 3)));
  (void)w.leave();
  // Nobody waits.
  CHECK_FALSE(w.c.releases(member(0, 2)));
  CHECK_FALSE(w.c.releases(member(1, 2)));
}

TEST_CASE("Waiting ends after so many polls, counted anew for each batch") {
  World w;
  w.c.small_left();
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    CHECK_FALSE(w.add(lone()));
    std::uint64_t poll = 1;
    for (int i = 0; i < kPatience; ++i) REQUIRE_FALSE(w.c.due(poll++, false));
    CHECK(w.c.due(poll, false));
    (void)w.leave();
  }
  CHECK_FALSE(w.add(lone()));
  CHECK(w.c.due(100, true));
}

// A group of which `sent` members came while its parcel was laid.
struct Group : World {
  std::vector<std::uint8_t> block = std::vector<std::uint8_t>(kParcelStride);
  std::array<std::uint8_t, kMaxRecvs * sizeof(NarrowCell)> cells{};
  const CellMeta first = member(0, kMaxRecvs);
  bool whole = false;

  explicit Group(unsigned sent) {
    CHECK(c.may_begin_group(first));
    c.begin_group(cells.data(), sizeof(NarrowCell), first, 17, block.data());
    for (unsigned i = 0; i < sent; ++i) {
      CHECK_FALSE(whole);
      before[next] = c.last();
      whole = i % 2 == 0 ? c.add_longest(next++, text(i)) : c.add_member(next++, text(i), 5);
    }
  }
  static const char* text(unsigned i) {
    static constexpr char kText[kMaxRecvs][64] = {"a0000", "b1111", "c2222", "d3333",
                                                  "e4444", "f5555", "g6666", "h7777"};
    return kText[i];
  }
  std::uint16_t end() {
    return c.end_group([this](std::uint16_t slot) { return before[slot]; },
                       [this](std::uint16_t slot, unsigned i) {
                         return Outgoing{block.data(),      &memory, CellView(cells.data()),
                                         c.group().meta(i), 5 + i,   slot};
                       });
  }
};

TEST_CASE("A whole group leaves as the parcel that was laid as its members came") {
  Group w(kMaxRecvs);
  CHECK(w.whole);
  CHECK_FALSE(w.c.group_open());
  CHECK(w.c.batch().empty());
  CHECK(w.chain(w.c.leave()) == std::vector<std::uint16_t>{7, 6, 5, 4, 3, 2, 1, 0});
  CHECK(w.c.empty());
  const GroupParcel& parcel = w.c.group();
  CHECK(parcel.message_bytes() == 4 * (kParcelBytes + 5));
  CHECK(parcel.block() == 17);
  std::size_t at = parcel_data_at(kMaxRecvs);
  for (unsigned i = 0; i < kMaxRecvs; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, parcel.data() + 4 * i, sizeof bits);
    ParcelEntry entry;
    REQUIRE(decode_entry(bits, entry));
    CHECK(entry.receive == member(i, kMaxRecvs).receive());
    CHECK(entry.bytes == (i % 2 == 0 ? kParcelBytes : 5));
    CHECK(std::memcmp(parcel.data() + at, Group::text(i), 5) == 0);
    at += padded(entry.bytes);
  }
  CHECK(parcel.bytes() == at);
}

TEST_CASE("A group that ends early is a batch that waits for the rest of it") {
  Group w(3);
  CHECK(w.c.group_open());
  CHECK_FALSE(w.c.empty());
  for (std::uint64_t poll = 1; poll < 9; ++poll) CHECK_FALSE(w.c.due(poll, false));
  CHECK(w.end() == 17);
  CHECK_FALSE(w.c.group_open());
  CHECK(w.c.batch().count() == 3);
  CHECK(w.c.batch().bytes() == 5 + 6 + 7);
  CHECK(int{w.c.batch().last().meta.sub()} == 2);
  CHECK(w.c.batch().last().slot == 2);
  CHECK(w.chain(w.c.last()) == std::vector<std::uint16_t>{2, 1, 0});
  for (unsigned i = 3; i < kMaxRecvs; ++i) CHECK(w.add(member(i, kMaxRecvs)) == (i == 7));
  CHECK(w.c.batch().count() == 8);
}

TEST_CASE("A group that ends before any member came has begun for nobody") {
  Group w(0);
  CHECK(w.end() == 17);
  CHECK(w.c.empty());
  CHECK(w.c.may_begin_group(w.first));
  for (unsigned i = 0; i < kMaxRecvs; ++i) CHECK(w.add(member(i, kMaxRecvs)) == (i == 7));
}

TEST_CASE("A group is laid as it comes only where nothing is half done") {
  World w;
  CHECK(w.c.may_begin_group(member(0, 8)));
  CHECK_FALSE(w.c.may_begin_group(member(1, 8)));
  CHECK_FALSE(w.c.may_begin_group(lone()));
  CHECK_FALSE(w.c.may_begin_group(CellMeta(cell_meta({0, 0, 1, 8, true, true}, 0))));
  CHECK_FALSE(w.c.may_begin_group(CellMeta(cell_meta({0, 0, 1, 8, false, false}, 0))));
  SECTION("something waits") {
    CHECK_FALSE(w.add(lone(3)));
    CHECK_FALSE(w.c.may_begin_group(member(0, 8)));
    (void)w.leave();
    CHECK(w.c.may_begin_group(member(0, 8)));
  }
  SECTION("one of its members went by itself") {
    (void)w.c.releases(member(4, 8));
    CHECK_FALSE(w.c.may_begin_group(member(0, 8)));
    CHECK(w.c.may_begin_group(member(0, 8, 1)));
  }
}

}  // namespace
}  // namespace twinpath
