// Data from one function to the other, through the guest's memory, as the kernel's driver would
// have it done: no machine is needed for that.
#include "plugin/base/clock.h"
#include "test/soft/pci/machine.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Opcode;
using mlx5::Refusal;
using test::Connected;
using test::End;
using test::kMemory;
using test::Machine;

TEST_CASE("data goes from scattered pages of one function to those of the other") {
  Connected ends;
  End &a = ends.a, &b = ends.b;
  for (std::uint64_t i = 0; i < End::kBytes; ++i) *a.byte(i) = static_cast<std::uint8_t>(i * 7 / 3);
  // Somebody arms another queue of the page: that is nothing to one that was never armed.
  a.ring(0x20, std::uint64_t{1} << 60 | (a.cqn + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  a.send(0, 8, End::kStart, b.key, End::kBytes, End::kStart);
  REQUIRE(a.completion(0) == 0);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < End::kBytes; ++i) wrong += *b.byte(i) != *a.byte(i) ? 1 : 0;
  CHECK(wrong == 0);
  CHECK(a.interrupts == 0);  // it was never armed

  // Armed: the next is told.  The word of another queue came after this one's.
  a.word(End::kRecords + 68, 1u << 28 | 1);
  a.ring(0x20, std::uint64_t{1} << 60 | (a.cqn + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(a.interrupts == 0);  // there is nothing that the program has not seen
  ends.write(1);
  REQUIRE(a.completion(1) == 0);
  CHECK(a.interrupted());
  CHECK(a.interrupts == 1);
  CHECK(mlx5::get({a.at(End::kEq + 32), 28}, {200, 24}) == a.cqn);

  // Behind the end.
  const std::uint64_t behind = End::kStart + End::kBytes - 7;
  a.send(2, 8, behind, b.key, 8, End::kStart);
  CHECK(a.completion(2) == 13);
  CHECK(a.syndrome(2) == static_cast<unsigned>(mlx5::Syndrome::remote_access));
  // That has ended both, and the responder's driver is told: when it is, not when the requester
  // has its completion, the responder's queue pair has failed, too.
  const auto told = b.wait_for_event();
  REQUIRE(told);
  CHECK(told->event == Event::access_violated);
  CHECK(told->number == b.qpn);
  REQUIRE(b.run(Opcode::query_qp, {{mlx5::kNumber, b.qpn}}) == Refusal::none);
  CHECK(mlx5::get(b.out, mlx5::qp::kState) == static_cast<unsigned>(mlx5::State::error));
}

TEST_CASE("an atomic at an address that is not aligned is refused as the peer's adapter would") {
  Connected ends;
  constexpr std::uint32_t kFetchAdd = 0x12;
  const std::span<std::uint8_t> entry = ends.a.new_entry(0, kFetchAdd, 4);
  mlx5::set(entry, {128, 64}, End::kStart + 4);
  mlx5::set(entry, {192, 32}, ends.b.key);
  mlx5::set(entry, {256, 64}, 1);
  mlx5::set(entry, {384, 32}, 8);
  mlx5::set(entry, {416, 32}, ends.a.key);
  mlx5::set(entry, {448, 64}, End::kStart);
  ends.a.word(End::kRecords + 4, 1);
  ends.a.ring(0x800, 1);
  REQUIRE(ends.a.completion(0) == 13);
  CHECK(ends.a.syndrome(0) == static_cast<unsigned>(mlx5::Syndrome::remote_invalid_request));
}

// Arms the end's completion queue for solicited ones when it has seen `count`.
void arm_solicited(End& end, std::uint32_t count) {
  end.word(End::kRecords + 68, (count & 3) << 28 | 1u << 24 | count);
  end.ring(0x20, end.cqn);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST_CASE("who waits for solicited messages is not woken by others") {
  const bool reliable = GENERATE(true, false);
  test::Ends ends;
  End &a = ends.a, &b = ends.b;
  for (End* end : {&a, &b}) end->make(reliable ? 0 : 2);
  ends.make_keys();
  if (reliable) {
    ends.connect();
  } else {
    a.be_ready(0x1234);
    b.be_ready(0x1234);
  }
  const auto send = [&](std::uint32_t index, bool solicited) {
    b.receive(index, 100);
    if (reliable)
      a.send_message(index, 40, solicited);
    else
      a.send_datagram(2 * index, b.qpn, b.data.lid(), 0x1234, 40, false, solicited);
    REQUIRE(b.completion(index) == 2);
  };
  arm_solicited(b, 0);
  send(0, false);
  CHECK(b.interrupts == 0);
  arm_solicited(b, 0);  // it has not seen that one, which is no reason to wake it
  CHECK(b.interrupts == 0);
  send(1, true);
  CHECK(b.interrupted());
}

TEST_CASE("a message longer than the port's longest ends as a local length error") {
  Connected ends;
  ends.a.send_message(0, (1u << 30) + 1);
  CHECK(ends.a.completion(0) == 13);
  CHECK(ends.a.syndrome(0) == static_cast<unsigned>(mlx5::Syndrome::local_length));
}

// Many rounds: which of its threads is first is not known.
TEST_CASE("what a function acknowledged before its firmware ended has its completion") {
  const auto told_of = [](End& end) {
    return end.word_at(End::kCq + 60).load(std::memory_order_acquire) >> 24 !=
           mlx5::kUnwrittenOwner;
  };
  for (int round = 0; round < 2000; ++round) {
    Connected ends;
    ends.b.receive(0, 8);
    ends.a.send_message(0, 8);
    for (const std::int64_t end = now_ns() + 5 * kSecond; !told_of(ends.a) && now_ns() < end;)
      std::this_thread::yield();
    ends.b.function.fail();
    REQUIRE(ends.a.completion(0) == 0);
    CHECK(told_of(ends.b));
  }
}

TEST_CASE("the completion that ended a queue pair comes before what it flushes") {
  Connected ends;
  End &a = ends.a, &b = ends.b;
  a.receive(0, 8);
  b.key += 0x100;  // nobody's
  b.receive(0, 8);
  b.receive(1, 8);
  a.send_message(0, 8);
  CHECK(a.completion(0) == 13);
  CHECK(a.syndrome(0) == static_cast<unsigned>(mlx5::Syndrome::remote_operation));
  CHECK(a.completion(1) == 14);
  CHECK(a.syndrome(1) == static_cast<unsigned>(mlx5::Syndrome::flushed));
  CHECK(b.completion(0) == 14);
  CHECK(b.syndrome(0) == static_cast<unsigned>(mlx5::Syndrome::local_protection));
  CHECK(b.completion(1) == 14);
  CHECK(b.syndrome(1) == static_cast<unsigned>(mlx5::Syndrome::flushed));
}

TEST_CASE("what the kernel gives its own queue pairs completes, and is flushed in error") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(8);  // QP1
  REQUIRE(a.make_key(0x5a, 0) == Refusal::none);
  a.be_ready(0x80010000);
  a.send_datagram(0, 1, 0x17, 0x80010000, 8);  // nobody's LID
  CHECK(a.completion(0) == 0);
  a.word(End::kRecords, 3);  // receives, of which there is room for 4
  REQUIRE(a.run(Opcode::qp_2err, {{mlx5::kNumber, a.qpn}}) == Refusal::none);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    CHECK(a.completion(i) == 14);
    CHECK(a.syndrome(i) == static_cast<unsigned>(mlx5::Syndrome::flushed));
  }
  a.send_datagram(2, 1, 0x17, 0x80010000, 8);
  CHECK(a.completion(4) == 13);
  CHECK(a.syndrome(4) == static_cast<unsigned>(mlx5::Syndrome::flushed));
}

TEST_CASE("datagrams come to who has their key and a receive, others are lost") {
  Machine machine;
  End a(machine, 0, 0x100000), b(machine, 1, 0x200000);
  for (End* end : {&a, &b}) {
    end->make(2);
    REQUIRE(end->make_key(0x5a, 0) == Refusal::none);
    end->be_ready(0x1234);
  }
  for (std::uint64_t i = 0; i < 100; ++i) *a.byte(i) = static_cast<std::uint8_t>(i + 1);
  a.send_datagram(0, b.qpn, b.data.lid(), 0x1234, 100);  // no receive
  REQUIRE(a.completion(0) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  b.receive(0, 200);
  a.send_datagram(2, b.qpn, b.data.lid(), 0x4321, 50);  // another key
  a.send_datagram(4, b.qpn, b.data.lid(), 0x1234, 60);
  REQUIRE(b.completion(0) == 2);
  const Bytes told(b.at(End::kCq), 64);
  CHECK(mlx5::get(told, {352, 32}) == 100);  // with room for the header
  CHECK(mlx5::get(told, {200, 24}) == a.qpn);
  CHECK(mlx5::get(told, {176, 16}) == a.data.lid());
  CHECK(mlx5::get(told, {194, 2}) == 0);  // no header
  CHECK(mlx5::get(told, {304, 16}) == 0xffff);
  CHECK(*b.byte(0) == 0);
  CHECK(*b.byte(40) == 1);
  CHECK(*b.byte(99) == 60);
  CHECK(*b.byte(100) == 0);
  REQUIRE(a.completion(2) == 0);

  // To a group: with a header, to those who are in it.
  const End::Value own{mlx5::kNumber, b.qpn}, high{{128, 64}, End::kGroup[0]},
      low{{192, 64}, End::kGroup[1]};
  CHECK(b.run(Opcode::detach_from_mcg, {own, high, low}) == Refusal::group);
  REQUIRE(b.run(Opcode::attach_to_mcg, {own, high, low}) == Refusal::none);
  CHECK(b.run(Opcode::attach_to_mcg, {own, high, low}) == Refusal::group);
  b.receive(1, 200);
  a.send_datagram(6, 0xffffff, 0xc001, 0x1234, 30, true);
  REQUIRE(b.completion(1) == 2);
  CHECK(mlx5::get({b.at(End::kCq) + 64, 64}, {194, 2}) == 1);
  CHECK(*b.byte(0) == 0x60);
  CHECK(*b.byte(24) == 0xff);
  CHECK(*b.byte(69) == 30);

  // Longer than its receive: the queue pair has failed.
  b.receive(2, 50);
  a.send_datagram(8, b.qpn, b.data.lid(), 0x1234, 30);
  CHECK(b.completion(2) == 14);
  CHECK(b.syndrome(2) == static_cast<unsigned>(mlx5::Syndrome::local_length));
}

TEST_CASE("a key is nobody's until a work request makes it one, and again when it is free") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(12);
  a.be_ready(0);
  const mlx5::Field domain{104, 24}, mode{22, 2}, by_free{1, 1};
  REQUIRE(a.run(Opcode::create_mkey, {{mode.at(16), 1}, {by_free.at(16), 1}}) == Refusal::none);
  const std::uint64_t index = a.number();
  // Four segments in front, the context, two pages.
  const auto change = [&](std::uint32_t at, std::uint64_t changed, std::uint64_t free) {
    const std::span<std::uint8_t> entry = a.new_entry(at, 0x25, 9);
    mlx5::set(entry, {96, 32}, index << 8);
    mlx5::set(entry, {128, 8}, 0x80);  // inline
    mlx5::set(entry, {160, 16}, free != 0 ? 0 : 1);
    mlx5::set(entry, {192, 64}, changed);
    const std::uint32_t context = 64;
    mlx5::set(entry, by_free.at(context), free);
    mlx5::set(entry, mlx5::Field{20, 1}.at(context), 1);
    mlx5::set(entry, mlx5::Field{56, 8}.at(context), 0x77);
    mlx5::set(entry, domain.at(context), a.pd);
    mlx5::set(entry, mlx5::Field{128, 64}.at(context), 0x10000);
    mlx5::set(entry, mlx5::Field{192, 64}.at(context), 2 * kGuestPage);
    mlx5::set(entry, mlx5::Field{475, 5}.at(context), 12);
    mlx5::set(entry, {1024, 64}, (a.base + End::kData + kGuestPage) | 3);
    mlx5::set(entry, {1088, 64}, (a.base + End::kData) | 3);
    a.word(End::kRecords + 4, at + 3);
    a.ring(0xd00, 1);  // as the kernel rings its own
  };
  const auto reads = [&](std::uint64_t address, std::uint32_t key, std::uint8_t& byte) {
    return soft::read_region(a.data.keys().domain(static_cast<std::uint32_t>(a.pd)), address, key,
                             &byte, 1);
  };
  const auto key = static_cast<std::uint32_t>(index << 8 | 0x77);
  constexpr std::uint64_t kAll =
      1u << 0 | 1u << 1 | 1u << 6 | 1u << 7 | 1u << 13 | 1u << 20 | 1u << 29;
  std::uint8_t byte = 0;
  CHECK_FALSE(reads(0x10000, static_cast<std::uint32_t>(index << 8), byte));
  change(0, kAll, 0);
  REQUIRE(a.completion(0) == 0);
  *a.at(End::kData + kGuestPage + 5) = 0x42;
  *a.at(End::kData) = 0x43;
  CHECK(reads(0x10005, key, byte));
  CHECK(byte == 0x42);
  CHECK(reads(0x10000 + kGuestPage, key, byte));
  CHECK(byte == 0x43);
  CHECK_FALSE(reads(0x10000 + 2 * kGuestPage, key, byte));
  change(3, 1u << 29, 1);
  REQUIRE(a.completion(1) == 0);
  CHECK_FALSE(reads(0x10005, key, byte));
  change(6, 1u << 12, 0);  // a signature, which is not made
  CHECK(a.completion(2) == 13);
}

TEST_CASE("the subnet's manager tells the path between two ports, and of none to others") {
  SubnetManager manager;
  manager.add({7, 0x700});
  manager.add({9, 0x900});
  std::vector<std::uint8_t> mad(256);
  const auto set = [&](std::uint32_t bit, std::uint32_t width, std::uint64_t value) {
    mlx5::set(mad, {bit, width}, value);
  };
  const auto answer = [&](std::uint32_t bit, std::uint32_t width) {
    const auto got = manager.answer(mad);
    REQUIRE(got);
    return mlx5::get(*got, {bit, width});
  };
  set(8, 8, 3), set(24, 8, 1), set(128, 16, 0x35);
  constexpr std::uint32_t kRecord = 56 * 8;
  set(kRecord + 64, 64, kLinkLocal), set(kRecord + 128, 64, 0x900);
  set(kRecord + 192, 64, kLinkLocal), set(kRecord + 256, 64, 0x700);
  CHECK(answer(24, 8) == 0x81);
  CHECK(answer(32, 16) == 0);
  CHECK(answer(kRecord + 320, 16) == 9);
  CHECK(answer(kRecord + 336, 16) == 7);
  set(kRecord + 128, 64, 0x901);
  CHECK(answer(32, 16) == 0x300);
  set(128, 16, 0x38);  // a group that nobody has joined, then one that somebody has
  CHECK(answer(32, 16) == 0x300);
  set(24, 8, 2);
  const std::uint64_t lid = answer(kRecord + 288, 16);
  CHECK((lid >= 0xc000 && lid < 0xfffe));
  set(24, 8, 1);
  CHECK(answer(kRecord + 288, 16) == lid);
  set(24, 8, 0x81);
  CHECK_FALSE(manager.answer(mad));
}

TEST_CASE("the key of all memory counts as the machine does") {
  Machine machine;
  const std::uint64_t first = GENERATE(std::uint64_t{0}, GuestMemory::kFirstOfVirt);
  const GuestMemory memory(machine.bytes, kMemory, machine.file.get(), first);
  MemoryKeys keys(machine.verbs, machine.contexts[0], memory);
  ibv_pd* const domain = keys.add_domain(1);
  std::vector<std::uint8_t> in(kPageListAt);
  mlx5::set(in, mlx5::Field{104, 24}.at(16), 1);
  mlx5::set(in, mlx5::Field{21, 1}.at(16), 1);  // it may be read
  std::uint32_t index = 0;
  REQUIRE(keys.add(in, index) == Refusal::none);
  machine.bytes[0x1234] = 0x42;
  std::uint8_t byte = 0;
  CHECK(soft::read_region(domain, first + 0x1234, index << 8, &byte, 1));
  CHECK(byte == 0x42);
  CHECK_FALSE(soft::read_region(domain, first + kMemory, index << 8, &byte, 1));
  CHECK_FALSE(soft::read_region(domain, first - 1, index << 8, &byte, 1));
}

TEST_CASE("keys of memory that is not there, or of a kind that is not made, are refused") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(0);
  const End::Value by_pages{mlx5::Field{22, 2}.at(16), 1}, pd{mlx5::Field{104, 24}.at(16), a.pd};
  const End::Value log_page{mlx5::Field{475, 5}.at(16), 12}, page{End::kPage, 0x300000};
  const auto length = [](std::uint64_t n) { return End::Value{mlx5::Field{192, 64}.at(16), n}; };
  const auto made = [&](std::initializer_list<End::Value> values) {
    return a.run(Opcode::create_mkey, values);
  };
  CHECK(made({by_pages, pd, log_page, page, length(4096)}) == Refusal::none);
  CHECK(made({by_pages, pd, log_page, page, length(4097)}) == Refusal::key_pages);
  CHECK(made({by_pages, pd, log_page, page, length(0)}) == Refusal::key_pages);
  CHECK(made({by_pages, pd, log_page, {End::kPage, kMemory}, length(8)}) == Refusal::no_page);
  CHECK(made({by_pages, log_page, page, length(8), {mlx5::Field{104, 24}.at(16), 77}}) ==
        Refusal::no_pd);
  CHECK(made({by_pages, pd, page, length(8)}) == Refusal::key_mode);
  CHECK(made({{mlx5::Field{22, 2}.at(16), 2}, pd, log_page, page, length(8)}) == Refusal::key_mode);
}

}  // namespace
}  // namespace twinpath::softhca::pci
