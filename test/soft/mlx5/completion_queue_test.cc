// A completion queue of the model by itself, in memory of this process.
#include "plugin/fabric/soft/mlx5/completion_queue.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "test/support/catch.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::uint32_t kCqn = 9, kArmOnce = 1u << 28;
constexpr unsigned kLog = 2;  // 4 entries

// What a program has: two memories for entries, and a record.
struct CqProgram {
  alignas(64) std::array<std::uint8_t, 8 * 128> entries{}, others{};
  alignas(8) std::array<std::uint32_t, 2> record{};
  std::vector<std::uint32_t> told, lost;

  CqProgram() {
    entries.fill(kUnwrittenOwner);
    others.fill(kUnwrittenOwner);
  }
  CompletionQueueFacts facts(bool waits = false, bool ends = false) {
    CompletionQueueFacts f;
    f.number = kCqn;
    f.address = reinterpret_cast<std::uintptr_t>(entries.data());
    f.record = reinterpret_cast<std::uintptr_t>(record.data());
    f.log_entries = kLog;
    if (waits) f.notify = [this](std::uint32_t cqn) { told.push_back(cqn); };
    if (ends) f.overflowed = [this](std::uint32_t cqn) { lost.push_back(cqn); };
    return f;
  }
  void took(std::uint32_t count) { record[0] = __builtin_bswap32(count); }
  void arm(std::uint32_t word) { record[1] = __builtin_bswap32(word); }
};

Completion completion(std::uint16_t index) {
  Completion c;
  c.index = index;
  return c;
}
// Of the entry whose bytes end there: the index, or -1 where nobody has written.
int index_at(const std::uint8_t* end) {
  return end[-1] == kUnwrittenOwner ? -1 : end[-4] << 8 | end[-3];
}
int index_at(const CqProgram& p, std::size_t place, std::size_t bytes = kEntryBytes) {
  return index_at(p.entries.data() + (place + 1) * bytes);
}

}  // namespace

TEST_CASE("Completions follow each other, lap after lap, and wait for the program",
          "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts());
  for (std::uint16_t i = 0; i < 4; ++i) {
    REQUIRE(cq.has_room());
    REQUIRE(cq.write(completion(i)));
    CHECK(index_at(p, i) == i);
    CHECK((p.entries[i * kEntryBytes + 63] & 1) == 0);
  }
  CHECK(index_at(p, 4) == -1);
  CHECK_FALSE(cq.has_room());
  p.took(5);  // more than there are: the program does not use the record yet
  CHECK_FALSE(cq.has_room());
  p.took(1);
  REQUIRE(cq.has_room());
  REQUIRE(cq.write(completion(4)));
  CHECK(index_at(p, 0) == 4);
  CHECK((p.entries[63] & 1) == 1);
  CHECK(cq.written() == 5);
  CHECK_FALSE(cq.has_room());
}

TEST_CASE("An entry of 128 bytes has the completion in its second half", "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;
  CompletionQueueFacts facts = p.facts();
  facts.entry_bytes = 128;
  CompletionQueue cq(around, facts);
  REQUIRE(cq.write(completion(7)));
  REQUIRE(cq.write(completion(8)));
  CHECK(p.entries[0] == kUnwrittenOwner);
  CHECK(index_at(p, 0, 128) == 7);
  CHECK(index_at(p, 1, 128) == 8);
}

TEST_CASE("A queue of which nobody tells what was taken has room always", "[completion-queue]") {
  const Surroundings around{};
  const bool collapsed = GENERATE(false, true);
  CqProgram p;
  CompletionQueueFacts facts = p.facts(false, true);
  (collapsed ? facts.collapsed : facts.ignores_overrun) = true;
  CompletionQueue cq(around, facts);
  for (std::uint16_t i = 0; i < 9; ++i) {
    REQUIRE(cq.has_room());
    REQUIRE(cq.write(completion(i)));
  }
  CHECK(index_at(p, 0) == 8);
  CHECK(index_at(p, 1) == (collapsed ? -1 : 5));
  CHECK(p.lost.empty());
}

TEST_CASE("A completion without a place ends the queue, which is said once", "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts(false, true));
  for (std::uint16_t i = 0; i < 4; ++i) REQUIRE(cq.write(completion(i)));
  CHECK(cq.has_room());  // it is not held back: it is lost
  CHECK_FALSE(cq.write(completion(4)));
  p.took(4);
  CHECK(cq.write(completion(5)));
  CHECK(index_at(p, 0) == 0);
  CHECK(cq.written() == 4);
  CHECK(p.lost.empty());  // the owner tells, when its queue pairs have ended
}

TEST_CASE("Who has armed the queue is told once, of what comes or is there", "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts(true));
  p.arm(2u << 28);  // as the kernel leaves it
  REQUIRE(cq.write(completion(0)));
  cq.look_at_arming(false);  // another queue of the page was named
  CHECK(p.told.empty());

  p.arm(kArmOnce | 1);  // it has seen one
  cq.look_at_arming(true);
  CHECK(p.told.empty());
  REQUIRE(cq.write(completion(1)));
  REQUIRE(p.told == std::vector<std::uint32_t>{kCqn});
  REQUIRE(cq.write(completion(2)));
  CHECK(p.told.size() == 1);

  p.arm(kArmOnce | 2);  // it has not seen the last: told at once, though another word was left
  cq.look_at_arming(false);
  CHECK(p.told.size() == 2);
  cq.look_at_arming(false);  // the same word: armed no more
  CHECK(p.told.size() == 2);
}

TEST_CASE("A queue that a program has made is not taken for armed when another is",
          "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;  // its record is zero, as libmlx5 leaves it
  CompletionQueue cq(around, p.facts(true));
  cq.look_at_arming(false);
  REQUIRE(cq.write(completion(0)));
  CHECK(p.told.empty());

  p.arm(0);  // the first to arm writes zero, too; the word that named the queue was overwritten
  cq.look_at_arming(false);
  CHECK(p.told.size() == 1);
  cq.look_at_arming(false);
  REQUIRE(cq.write(completion(1)));
  CHECK(p.told.size() == 1);
}

TEST_CASE("Who waits for solicited completions is told of these and of errors alone",
          "[completion-queue]") {
  constexpr std::uint32_t kSolicited = 1u << 24;
  const Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts(true));
  Completion solicited = completion(1), error = completion(3);
  solicited.solicited = true;
  error.kind = GENERATE(CompletionKind::requester_error, CompletionKind::responder_error);
  const auto arm = [&](std::uint32_t word) {
    p.arm(word);
    cq.look_at_arming(true);
  };
  arm(kArmOnce | kSolicited);
  REQUIRE(cq.write(completion(0)));
  CHECK(p.told.empty());
  REQUIRE(cq.write(solicited));
  CHECK(p.told.size() == 1);

  arm(2 * kArmOnce | kSolicited | 1);  // it has not seen that one
  CHECK(p.told.size() == 2);
  arm(3 * kArmOnce | kSolicited | 2);
  p.took(2);
  REQUIRE(cq.write(completion(2)));
  arm(3 * kArmOnce | kSolicited | 2);  // there is another, but not such a one
  CHECK(p.told.size() == 2);
  REQUIRE(cq.write(error));
  CHECK(p.told.size() == 3);

  arm(kSolicited | 4);
  arm(4);  // now for any, which one for solicited ones does not change
  arm(kSolicited | 4);
  p.took(4);
  REQUIRE(cq.write(completion(4)));
  CHECK(p.told.size() == 4);
}

TEST_CASE("Completions tell the device's clock, where there is one", "[completion-queue]") {
  Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts());
  REQUIRE(cq.write(completion(0)));
  around.clock = [] { return std::uint64_t{0x0102030405060708}; };
  REQUIRE(cq.write(completion(1)));
  Completion error = completion(2);
  error.kind = CompletionKind::requester_error;
  error.syndrome = Syndrome::flushed;
  REQUIRE(cq.write(error));
  const auto time_at = [&](std::size_t place) {
    std::uint64_t time = 0;
    std::memcpy(&time, p.entries.data() + place * kEntryBytes + 48, sizeof time);
    return __builtin_bswap64(time);
  };
  CHECK(time_at(0) == 0);
  CHECK(time_at(1) == 0x0102030405060708);
  CHECK(time_at(2) == static_cast<std::uint64_t>(Syndrome::flushed));
}

TEST_CASE("A queue goes on in other memory where what waits has room", "[completion-queue]") {
  const Surroundings around{};
  CqProgram p;
  CompletionQueue cq(around, p.facts());
  CompletionQueueFacts to = p.facts();
  to.address = reinterpret_cast<std::uintptr_t>(p.others.data());
  to.log_entries = 1;
  REQUIRE(cq.write(completion(0)));
  REQUIRE(cq.write(completion(1)));
  p.took(1);  // what waits would have room, but not with the entry that says so
  CHECK_FALSE(cq.resize(to));
  CHECK(cq.facts().log_entries == kLog);
  CHECK(index_at(p, 2) == -1);

  p.took(2);
  REQUIRE(cq.resize(to));
  CHECK(p.entries[2 * kEntryBytes + 63] >> 4 == static_cast<int>(CompletionKind::resized));
  REQUIRE(cq.write(completion(3)));
  CHECK(index_at(p, 3) == -1);
  CHECK(index_at(p.others.data() + 2 * kEntryBytes) == 3);  // the fourth, of two places
}

}  // namespace twinpath::soft::mlx5
