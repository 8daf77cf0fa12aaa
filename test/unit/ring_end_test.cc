// The program's end of the rings, with the test as the copy process.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/gpu/process/ring_end.h"
#include "test/support/catch.h"

namespace twinpath::gpu::process {
namespace {

constexpr auto kClosed = static_cast<std::uint32_t>(Status::closed);

struct Arrival {
  std::uint32_t task = 0, status = 0;
  std::uint64_t old = 0;
  bool operator==(const Arrival&) const = default;
};
using Arrivals = std::vector<Arrival>;

struct Both {
  std::unique_ptr<Rings> rings = std::make_unique<Rings>();
  std::unique_ptr<RingEnd> end = std::make_unique<RingEnd>(*rings);
  std::uint32_t completed = 0;
  Arrivals arrivals;

  void push(std::uint32_t task) {
    Entry entry;
    entry.order = task;
    end->push(entry, {.task = task});
  }
  // The process ends entry number `i` of those pushed.
  void complete(std::uint32_t i, std::uint64_t old = 0) {
    rings->outcomes[completed % kEntries] = {old, rings->entries[i % kEntries].slot, 0};
    rings->completed.store(++completed);
  }
  auto note() {
    return [this](const RingEnd::Given& given, const Outcome& outcome) {
      arrivals.push_back({given.task, outcome.status, outcome.old});
    };
  }
  bool collect() { return end->collect(note()); }
  Arrivals taken() { return std::exchange(arrivals, {}); }
};

TEST_CASE("entries are seen in their order once they are published", "[gpu_process]") {
  Both b;
  b.rings->asleep.store(1);
  b.end->publish();
  CHECK(b.rings->asleep.load() == 1);  // there was nothing to wake for
  CHECK(b.end->idle());
  for (std::uint32_t i = 0; i < 3; ++i) b.push(100 + i);
  CHECK(b.rings->submitted.load() == 0);
  CHECK_FALSE(b.end->idle());
  b.end->publish();
  CHECK(b.rings->submitted.load() == 3);
  CHECK(b.rings->asleep.load() == 0);
  b.rings->asleep.store(1);
  b.end->publish();
  CHECK(b.rings->asleep.load() == 1);  // nor is there now
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(b.rings->entries[i].order == 100 + i);
}

TEST_CASE("outcomes find what was remembered, in whatever order they come", "[gpu_process]") {
  Both b;
  for (std::uint32_t i = 0; i < 4; ++i) b.push(i);
  CHECK_FALSE(b.collect());
  b.complete(2, 22);
  b.complete(0, 20);
  CHECK(b.collect());
  CHECK(b.taken() == Arrivals{{2, 0, 22}, {0, 0, 20}});
  CHECK_FALSE(b.collect());
  CHECK_FALSE(b.end->idle());
  b.complete(3);
  b.complete(1);
  CHECK(b.collect());
  CHECK(b.taken() == Arrivals{{3, 0, 0}, {1, 0, 0}});
  CHECK(b.end->idle());
}

TEST_CASE("the rings are full when each slot is under way", "[gpu_process]") {
  Both b;
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    REQUIRE(b.end->room());
    b.push(i);
  }
  CHECK_FALSE(b.end->room());
  std::vector<int> seen(kEntries);
  for (const Entry& entry : b.rings->entries) {
    REQUIRE(entry.slot < kEntries);
    CHECK(++seen[entry.slot] == 1);
  }
  b.complete(17);
  CHECK(b.collect());
  CHECK(b.end->room());
  b.push(kEntries);
  CHECK_FALSE(b.end->room());
}

TEST_CASE("an outcome of no slot is passed over", "[gpu_process]") {
  Both b;
  b.push(5);
  b.rings->outcomes[0] = {0, kEntries, 0};
  b.rings->completed.store(b.completed = 1);
  CHECK(b.collect());
  CHECK(b.taken().empty());
  b.complete(0);
  CHECK(b.collect());
  CHECK(b.taken() == Arrivals{{5, 0, 0}});
}

TEST_CASE("what a process that has ended did not tell arrives closed, in order", "[gpu_process]") {
  Both b;
  SECTION("some had ended, and were told or not") {
    // Slots are used again, so an older entry names the slot of a newer one.
    for (std::uint32_t i = 0; i < 4; ++i) b.push(i);
    b.complete(3);
    b.complete(1);
    CHECK(b.collect());
    CHECK(b.taken().size() == 2);
    for (std::uint32_t i = 4; i < 7; ++i) b.push(i);
    b.complete(5, 55);
    b.end->give_up(b.note());
    CHECK(b.taken() ==
          Arrivals{{5, 0, 55}, {0, kClosed, 0}, {2, kClosed, 0}, {4, kClosed, 0}, {6, kClosed, 0}});
  }
  SECTION("after more than one lap") {
    for (std::uint32_t i = 0; i < 2 * kEntries + 10; ++i) {
      b.push(i);
      if (i < 2 * kEntries) b.complete(i);
      (void)b.collect();
    }
    b.arrivals.clear();
    b.end->give_up(b.note());
    REQUIRE(b.arrivals.size() == 10);
    for (std::uint32_t i = 0; i < 10; ++i)
      CHECK(b.arrivals[i] == Arrival{2 * kEntries + i, kClosed, 0});
  }
  b.arrivals.clear();
  CHECK(b.end->idle());
  // What it says now is about nothing that is under way.
  b.complete(0);
  CHECK_FALSE(b.collect());
  b.end->give_up(b.note());
  CHECK(b.arrivals.empty());
}

}  // namespace
}  // namespace twinpath::gpu::process
