// Slots and mailboxes, the registers, event queues.
#include <numeric>

#include "test/soft/pci/guest.h"
#include "test/support/catch.h"
#include "tools/softhca/pci/command_queue.h"
#include "tools/softhca/pci/event_queues.h"

namespace twinpath::softhca::pci {
namespace {

using test::Guest;

std::vector<std::uint8_t> counted(std::size_t n) {
  std::vector<std::uint8_t> bytes(n);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
  return bytes;
}

constexpr std::uint64_t kSlot = 0x1000;

TEST_CASE("commands and answers of any length come through slots and mailboxes") {
  for (const std::size_t n : {8u, 12u, 16u, 17u, 528u, 529u, 1552u, 4112u}) {
    INFO(n);
    Guest guest;
    const auto in = counted(n);
    guest.give(kSlot, in, static_cast<std::uint32_t>(n));
    const Slot slot(guest.memory, guest.bytes.data() + kSlot);
    REQUIRE(slot.given());
    Message message;
    REQUIRE(slot.read(message) == Delivery::ok);
    CHECK(message.in == in);
    CHECK(message.answer_bytes == n);
    REQUIRE(slot.write(in) == Delivery::ok);
    CHECK(std::equal(in.begin(), in.begin() + static_cast<long>(std::min<std::size_t>(n, 16)),
                     guest.bytes.begin() + kSlot + 32));
    for (std::size_t i = 16; i < n; ++i)
      REQUIRE(guest.bytes[Guest::kOut + (i - 16) / 512 * 1024 + (i - 16) % 512] == in[i]);
    slot.hand_back(Delivery::ok);
    CHECK_FALSE(slot.given());
  }
}

TEST_CASE("what is wrong with a slot or a mailbox is told as the device numbers it") {
  struct Case {
    const char* what;
    std::uint64_t at;
    test::Field field;
    std::uint64_t value;
    Delivery reading, writing;
  };
  const auto ok = Delivery::ok;
  const Case cases[] = {
      {"type", kSlot, {0, 8}, 6, Delivery::descriptor, ok},
      {"no length", kSlot, {32, 32}, 0, Delivery::in_length, ok},
      {"endless", kSlot, {32, 32}, 0x7fffffff, Delivery::in_length, ok},
      {"2 MiB, as of a key of 1 GiB, and no blocks",
       kSlot,
       {32, 32},
       2u << 20,
       Delivery::in_pointer,
       ok},
      {"answer", kSlot, {448, 32}, 4, Delivery::out_length, ok},
      {"no block", kSlot, {64, 64}, 0, Delivery::in_pointer, ok},
      {"block outside", kSlot, {64, 64}, Guest::kBytes, Delivery::in_pointer, ok},
      {"block far outside", kSlot, {64, 64}, ~std::uint64_t{511}, Delivery::in_pointer, ok},
      {"crooked block", kSlot, {64, 64}, Guest::kIn + 64, Delivery::in_pointer, ok},
      {"token", Guest::kIn + 1024, {4584, 8}, 1, Delivery::token, ok},
      {"order", Guest::kIn + 1024, {4544, 32}, 2, Delivery::block_number, ok},
      {"chain ends", Guest::kIn, {4480, 64}, 0, Delivery::in_pointer, ok},
      {"no answer block", kSlot, {384, 64}, 0, ok, Delivery::out_pointer},
      {"answer token", Guest::kOut, {4584, 8}, 1, ok, Delivery::token},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Guest guest;
    const auto in = counted(1000);
    guest.give(kSlot, in, 1000);
    test::set(guest.at(c.at, kMailboxBytes), c.field, c.value);
    const Slot slot(guest.memory, guest.bytes.data() + kSlot);
    Message message;
    CHECK(slot.read(message) == c.reading);
    CHECK(slot.write(in) == c.writing);
    slot.hand_back(c.reading);
    CHECK(guest.bytes[kSlot + 63] >> 1 == static_cast<int>(c.reading));
  }
}

struct Registers {
  Guest guest;
  std::vector<std::uint8_t> bar = std::vector<std::uint8_t>(0x4000);
  CommandQueue queue{bar, guest.memory};
  int ran = 0;
  std::uint64_t word(std::uint32_t at) { return test::get(bar, {8 * at, 32}); }
  void write(std::uint32_t at, std::uint64_t value) { test::set(bar, {8 * at, 32}, value); }
  void poll(std::int64_t now, bool unrung = true) {
    (void)queue.poll(now, unrung, [this](unsigned, const Slot& slot) {
      slot.hand_back(Delivery::ok);
      ++ran;
    });
  }
};

TEST_CASE("the queue's address is taken where its size stood, and the size shown again") {
  Registers r;
  const std::uint64_t size = r.word(0x14);
  r.write(0x10, 0);
  r.write(0x14, kSlot);
  r.guest.give(kSlot, counted(16), 16);
  r.write(0x18, 1);
  r.poll(1);
  CHECK(r.ran == 1);
  CHECK(r.word(0x14) == (kSlot | size));
  CHECK(r.word(0x18) == 0);
}

TEST_CASE("a command without its ring waits, and is not run for nobody") {
  Registers r;
  r.write(0x14, kSlot);
  r.guest.give(kSlot, counted(16), 16);
  r.poll(1);
  // A machine that stands still before it rings.
  constexpr std::int64_t kRung = 100 * CommandQueue::kGrace;
  r.poll(kRung - 1);
  CHECK(r.ran == 0);
  // The other's ring, which may have been stored over this one's.
  r.write(0x18, 2);
  r.poll(kRung);
  r.poll(kRung + CommandQueue::kGrace - 1);
  CHECK(r.ran == 0);
  r.poll(kRung + 10 * CommandQueue::kGrace, false);  // no driver has the function
  CHECK(r.ran == 0);
  r.poll(kRung + CommandQueue::kGrace);
  CHECK(r.ran == 1);
  CHECK(r.queue.rings_lost() == 1);
  // The next one is another matter.
  r.guest.give(kSlot, counted(16), 16);
  r.poll(2 * kRung);
  CHECK(r.ran == 1);
  r.write(0x18, 1);
  r.poll(2 * kRung + 1);
  CHECK(r.ran == 2);
  CHECK(r.queue.rings_lost() == 1);
}

TEST_CASE("a queue outside the memory is none") {
  Registers r;
  r.write(0x10, 1);
  r.write(0x14, kSlot);
  r.write(0x18, 1);
  r.poll(1);
  CHECK(r.ran == 0);
}

TEST_CASE("the health counter moves with time") {
  Registers r;
  r.queue.tick(1);
  const auto first = r.word(0x1010);
  r.queue.tick(2);
  CHECK(r.word(0x1010) == first);
  r.queue.tick(1'000'000'000);
  CHECK(r.word(0x1010) != first);
  CHECK(r.word(0x1004) != 0);
}

TEST_CASE("a device that has failed says so, begins anew, and answers when it has a queue") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  Registers r;
  r.write(0x14, kSlot);
  r.poll(1);
  r.queue.tick(1);
  CHECK(r.word(0x238) == 0);
  r.queue.fail(2);
  CHECK(r.word(0x238) == 0x80000000);
  CHECK(r.word(0x23c) == 0x10000);
  CHECK((r.word(0x14) & 0x700) == 0x100);  // disabled
  const auto beat = r.word(0x1010);
  r.guest.give(kSlot, counted(16), 16);
  r.write(0x18, 1);
  r.poll(2);
  r.queue.tick(3 * kSecond);
  CHECK(r.word(0x1010) == beat);
  r.queue.tick(5 * kSecond);
  CHECK(r.word(0x238) == 0);
  CHECK(r.word(0x23c) == 0);
  CHECK(r.word(0x1010) != beat);
  r.poll(5 * kSecond);
  r.poll(6 * kSecond);
  CHECK(r.ran == 0);
  r.write(0x14, kSlot);
  r.write(0x18, 1);
  r.poll(7 * kSecond);
  CHECK(r.ran == 1);
  CHECK((r.word(0x14) & 0x700) == 0);
}

// CREATE_EQ of 2 entries on one page.
std::vector<std::uint8_t> create_eq(std::uint64_t log_entries, std::uint64_t vector,
                                    std::uint64_t page, std::uint64_t mask) {
  std::vector<std::uint8_t> in(280);
  test::set(in, {227, 5}, log_entries);
  test::set(in, {308, 12}, vector);
  test::set(in, {704, 64}, mask);
  test::set(in, {2176, 64}, page);
  return in;
}

TEST_CASE("event queues are written in laps and raise their vector") {
  Guest guest;
  unsigned raised = 0;
  EventQueues events(guest.memory, 2, [&](unsigned vector) { raised += vector == 1 ? 1 : 100; });
  const std::uint64_t mask = 1u << static_cast<unsigned>(Event::port_change);
  using mlx5::Refusal;
  CHECK(events.make(8, create_eq(1, 2, 0x3000, mask)) == Refusal::no_vector);
  CHECK(events.make(8, create_eq(7, 1, 0x3000, mask)) == Refusal::eq_size);
  CHECK(events.make(8, create_eq(21, 1, 0x3000, mask)) == Refusal::eq_size);
  CHECK(events.make(8, create_eq(1, 1, Guest::kBytes, mask)) == Refusal::no_page);
  CHECK_FALSE(events.takes(Event::port_change));
  REQUIRE(events.make(8, create_eq(1, 1, 0x3000, mask)) == Refusal::none);
  CHECK(events.takes(Event::port_change));
  CHECK_FALSE(events.takes(Event::command));
  CHECK_FALSE(events.tell(Event::command, 0, {}));
  const std::uint8_t owners[] = {0, 0, 1, 1, 0};
  for (std::size_t i = 0; i < std::size(owners); ++i) {
    CHECK(events.tell(Event::port_change, 4, std::vector<std::uint8_t>{9}));
    const auto entry = guest.at(0x3000 + i % 2 * 64, 64);
    CHECK(entry[1] == 9);
    CHECK(entry[3] == 4);
    CHECK(entry[32] == 9);
    CHECK(entry[63] == owners[i]);
    CHECK(raised == i + 1);
  }
  events.destroy(8);
  CHECK_FALSE(events.tell(Event::port_change, 4, {}));
}

TEST_CASE("event queues lie in pages of any size") {
  // Of 16 KiB, of which it fills two.
  Guest guest;
  EventQueues events{guest.memory, 1, [](unsigned) {}};
  std::vector<std::uint8_t> in(288);
  constexpr std::uint64_t kLogEntries = 9, kEntries = 1 << kLogEntries;
  mlx5::set(in, mlx5::Field{99, 5}.at(16), kLogEntries);
  mlx5::set(in, mlx5::Field{195, 5}.at(16), 2);
  mlx5::set(in, {704, 64}, 1u << 9);
  mlx5::set(in, {2176, 64}, 0x8000);
  CHECK(events.make(8, Bytes(in).first(280)) == mlx5::Refusal::eq_size);
  mlx5::set(in, {2240, 64}, 0x4000);
  REQUIRE(events.make(8, in) == mlx5::Refusal::none);
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    CHECK(events.tell(Event::port_change, 4, std::vector<std::uint8_t>{9}));
    const std::uint64_t page = i < kEntries / 2 ? 0x8000 : 0x4000;
    CHECK(guest.at(page + i % (kEntries / 2) * 64, 64)[1] == 9);
  }
  mlx5::set(in, {2240, 64}, Guest::kBytes - 0x2000);
  CHECK(events.make(9, in) == mlx5::Refusal::no_page);
}

TEST_CASE("memory of a machine that does not begin at 0") {
  std::vector<std::uint8_t> bytes(0x3000);
  const GuestMemory memory(bytes, bytes.size(), -1, GuestMemory::kFirstOfVirt);
  CHECK(memory.first() == 0x40000000);
  CHECK(memory.at(0x40000000, 0x3000) == bytes.data());
  CHECK(memory.at(0x40000001, 0x3000) == nullptr);
  CHECK(memory.at(0x3fffffff, 1) == nullptr);
  CHECK(memory.at(0, 1) == nullptr);
  CHECK(memory.at(std::uint64_t{1} << 32, 1) == nullptr);
}

TEST_CASE("memory above the hole for PCI is at 4 GiB") {
  std::vector<std::uint8_t> bytes(0x3000);
  const GuestMemory memory(bytes, 0x2000);
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
  CHECK(memory.at(0x1fff, 1) == bytes.data() + 0x1fff);
  CHECK(memory.at(0x1fff, 2) == nullptr);
  CHECK(memory.at(kHigh, 0x1000) == bytes.data() + 0x2000);
  CHECK(memory.at(kHigh, 0x1001) == nullptr);
  CHECK(memory.at(~std::uint64_t{0}, 2) == nullptr);
  CHECK(GuestMemory::low_bytes_of_q35(std::uint64_t{1} << 30) == std::uint64_t{1} << 30);
  CHECK(GuestMemory::low_bytes_of_q35(std::uint64_t{4} << 30) == 0x80000000);
}

}  // namespace
}  // namespace twinpath::softhca::pci
