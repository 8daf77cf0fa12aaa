// Entries of send, receive and completion queues as the model reads and writes them.
#include "plugin/fabric/soft/mlx5/work.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/mlx5/completion.h"
#include "plugin/fabric/soft/mlx5/field.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"
#include "test/support/catch.h"
#include "test/support/needs.h"
#include "tools/softhca/mlx5/selftest_commands.h"

using namespace twinpath::soft::mlx5;
using twinpath::kSecond;
using twinpath::now_ns;
using twinpath::softhca::Bytes;

namespace {

constexpr std::uint32_t kQpn = 0x123456;

// An entry of `segments` at `index`; what the program leaves unwritten is not zero.
Bytes entry(Operation operation, unsigned segments, std::uint32_t index = 7,
            std::size_t blocks = 1) {
  Bytes e(blocks * 64);
  std::memset(e.data(), 0xdd, e.size());
  e.put(0, 31, 24, 0).put(0, 23, 8, index).put(0, 7, 0, static_cast<std::uint32_t>(operation));
  e.put(4, 31, 8, kQpn).put(4, 7, 0, segments).put(8, 7, 0, 0x08);
  return e;
}

Bytes& remote(Bytes& e) {
  return e.put(16, 31, 0, 0x11).put(20, 31, 0, 0x2233).put(24, 31, 0, 0xabcd);
}
Bytes& piece(Bytes& e, std::size_t at, std::uint32_t bytes) {
  return e.put(at, 31, 0, bytes)
      .put(at + 4, 31, 0, 0x77)
      .put(at + 8, 31, 0, 1)
      .put(at + 12, 31, 0, 0x5000);
}

Defect read(Bytes& e, Work& work, std::uint64_t index = 7) {
  return read_work({e.data(), e.size()}, kQpn, index, Service::reliable, work);
}

}  // namespace

TEST_CASE("entries of every operation are read") {
  Work w;
  Bytes write = entry(Operation::write, 3);
  remote(write);
  piece(write, 32, 0x7fffffff);
  REQUIRE(read(write, w, 0x50007) == Defect::none);
  CHECK(w.operation == Operation::write);
  CHECK(w.completion);
  CHECK(w.remote_address == 0x1100002233);
  CHECK(w.remote_key == 0xabcd);
  REQUIRE(w.pieces.size() == 1);
  CHECK(w.pieces[0].address == 0x100005000);
  CHECK(w.pieces[0].bytes == 0x7fffffff);
  CHECK(w.pieces[0].key == 0x77);

  Bytes nop = entry(Operation::nop, 1);
  CHECK(read(nop, w) == Defect::none);
  CHECK(w.blocks == 1);

  Bytes add = entry(Operation::fetch_add, 4);
  remote(add).put(32, 31, 0, 0x1).put(36, 31, 0, 0x2);
  piece(add, 48, 8);
  REQUIRE(read(add, w) == Defect::none);
  CHECK(w.add_or_swap == 0x100000002);
  CHECK(w.remote_address == 0x1100002233);
  CHECK(w.pieces.size() == 1);

  Bytes swap = entry(Operation::compare_swap, 4);
  remote(swap).put(32, 31, 0, 0).put(36, 31, 0, 5).put(40, 31, 0, 0).put(44, 31, 0, 6);
  piece(swap, 48, 8);
  REQUIRE(read(swap, w) == Defect::none);
  CHECK(w.add_or_swap == 5);
  CHECK(w.compare == 6);

  Bytes wait = entry(Operation::wait, 2);
  wait.put(24, 31, 0, 0x12345).put(28, 31, 0, 0x106);
  REQUIRE(read(wait, w) == Defect::none);
  CHECK(w.wait_index == 0x12345);
  CHECK(w.wait_cqn == 0x106);

  Bytes dump = entry(Operation::dump, 2);
  piece(dump, 16, 1);
  REQUIRE(read(dump, w) == Defect::none);
  CHECK(w.pieces.size() == 1);

  Bytes send = entry(Operation::send_immediate, 2).put(12, 31, 0, 0x01020304).put(8, 7, 0, 0x0a);
  piece(send, 16, 100);
  REQUIRE(read(send, w) == Defect::none);
  CHECK(w.immediate == 0x01020304);
  CHECK(w.solicited);
  Bytes silent = entry(Operation::send, 2).put(8, 7, 0, 0x20);
  piece(silent, 16, 0);  // no bytes, no piece
  REQUIRE(read(silent, w) == Defect::none);
  CHECK_FALSE(w.completion);
  CHECK(w.fenced);
  CHECK(w.pieces.empty());
}

TEST_CASE("masked atomics have operands of 4 and 8 bytes") {
  Work w;
  Bytes add = entry(Operation::masked_fetch_add, 4).put(0, 31, 24, 8);
  remote(add).put(32, 31, 0, 3).put(36, 31, 0, 0x80);
  piece(add, 48, 4);
  REQUIRE(read(add, w) == Defect::none);
  CHECK(w.add_or_swap == 3);
  CHECK(w.add_or_swap_mask == 0x80);
  add.put(0, 31, 24, 9).put(40, 31, 0, 0x80000000).put(44, 31, 0, 1);
  REQUIRE(read(add, w) == Defect::none);
  CHECK(w.add_or_swap == 0x300000080);
  CHECK(w.add_or_swap_mask == 0x8000000000000001);

  Bytes swap = entry(Operation::masked_compare_swap, 4).put(0, 31, 24, 8);
  remote(swap).put(32, 31, 0, 1).put(36, 31, 0, 2).put(40, 31, 0, 3).put(44, 31, 0, 4);
  piece(swap, 48, 4);
  REQUIRE(read(swap, w) == Defect::none);
  CHECK(w.add_or_swap == 1);
  CHECK(w.compare == 2);
  CHECK(w.add_or_swap_mask == 3);
  CHECK(w.compare_mask == 4);
  CHECK(read(swap.put(0, 31, 24, 9), w) == Defect::size);  // of 8 bytes it is longer

  Bytes wide = entry(Operation::masked_compare_swap, 5, 7, 2).put(0, 31, 24, 9);
  remote(wide);
  for (std::uint32_t i = 0; i < 4; ++i)
    wide.put(32 + 8 * i, 31, 0, 0).put(36 + 8 * i, 31, 0, 10 + i);
  piece(wide, 64, 8);
  REQUIRE(read(wide, w) == Defect::none);
  CHECK(w.add_or_swap == 10);
  CHECK(w.compare == 11);
  CHECK(w.add_or_swap_mask == 12);
  CHECK(w.compare_mask == 13);
  CHECK(w.pieces.size() == 1);
  CHECK(w.blocks == 2);
}

TEST_CASE("inline data are copied, and only what there is room for") {
  Work w;
  Bytes e = entry(Operation::write, 4);
  remote(e);
  for (const std::uint32_t length : {0u, 1u, 12u, 13u, 28u}) {
    CAPTURE(length);
    e.put(4, 7, 0, length > 12 ? 4 : 3).put(32, 31, 0, 0x80000000 | length);
    for (std::size_t i = 0; i < 28; ++i) e.data()[36 + i] = static_cast<std::uint8_t>(i);
    REQUIRE(read(e, w) == Defect::none);
    REQUIRE(w.inline_data.size() == length);
    for (std::size_t i = 0; i < length; ++i) CHECK(w.inline_data[i] == i);
    CHECK(w.pieces.empty());
  }
  e.put(4, 7, 0, 4).put(32, 31, 0, 0x80000000 | 29);
  CHECK(read(e, w) == Defect::inline_length);
  e.put(32, 31, 0, 0xffffffff);
  CHECK(read(e, w) == Defect::inline_length);
}

TEST_CASE("an entry that is none is refused") {
  Work w;
  Bytes e = entry(Operation::write, 3);
  remote(e);
  piece(e, 32, 8);
  const Bytes good = e;
  for (const std::uint32_t opcode : {0x01u, 0x0eu, 0x19u, 0x25u, 0xffu})
    CHECK(read(e.put(0, 7, 0, opcode), w) == Defect::operation);
  e = good;
  CHECK(read(e.put(4, 31, 8, kQpn + 1), w) == Defect::queue_pair);
  e = good;
  CHECK(read(e, w, 8) == Defect::place);
  CHECK(read(e, w, 0x10008) == Defect::place);
  CHECK(read(e, w, 0x10007) == Defect::none);
  for (const std::uint32_t segments : {0u, 1u, 5u, 63u})
    CHECK(read(e.put(4, 7, 0, segments), w) == Defect::size);
  for (const Operation o :
       {Operation::fetch_add, Operation::compare_swap, Operation::masked_fetch_add}) {
    for (const unsigned segments : {2u, 3u}) {  // no operands, no place for the result
      e = entry(o, segments);
      CHECK(read(e, w) == Defect::size);
    }
  }
  Bytes cut(32);
  CHECK(read(cut, w) == Defect::size);
  CHECK(std::string(text_of(Defect::size)).size() > 10);
}

TEST_CASE("blocks of an entry by its segments") {
  for (std::uint32_t segments = 0; segments < 64; ++segments) {
    Bytes e = entry(Operation::write, segments);
    const unsigned wanted = segments == 0 ? 1 : (segments + 3) / 4;
    CHECK(blocks_of({e.data(), 8}) == wanted);
  }
}

TEST_CASE("receives: pieces up to the end of the list") {
  Bytes e(64);
  piece(e, 0, 10);
  piece(e, 16, 20);
  piece(e, 32, 30).put(36, 31, 0, 0x100);
  piece(e, 48, 40);
  CHECK(read_receive({e.data(), 64}).size() == 2);
  CHECK(read_receive({e.data(), 16}).size() == 1);
  piece(e, 32, 30);
  CHECK(read_receive({e.data(), 64}).size() == 4);
  piece(e, 0, 0);
  CHECK(read_receive({e.data(), 64}).empty());
}

TEST_CASE("short indices mean the next place that they can") {
  CHECK(extend_index(0, 5, 16, 128) == 5u);
  CHECK(extend_index(0xfffe, 2, 16, 128) == 0x10002u);
  CHECK(extend_index(0x1fffe, 0xfffe, 16, 128) == 0x1fffeu);  // told again
  CHECK(extend_index(0x123fff0, 0x10, 16, 128) == 0x1240010u);
  CHECK_FALSE(extend_index(100, 99, 16, 128).has_value());  // not back
  CHECK_FALSE(extend_index(0, 129, 16, 128).has_value());   // not further than the queue is long
  CHECK(extend_index(0, 128, 16, 128) == 128u);
  CHECK(extend_index(0xffffff, 1, 24, 128) == 0x1000001u);
  CHECK(extend_index(0, 32768, 16, 32768) == 32768u);
}

TEST_CASE("completions have their fields where drivers read them") {
  Completion c;
  c.kind = CompletionKind::send_immediate;
  c.qpn = kQpn;
  c.opcode = 0x0b;
  c.index = 0x1234;
  c.bytes = 77;
  c.immediate = 0x01020304;
  c.user_index = 0xaabbcc;
  const auto good = completion_bytes(c, 0, 7);
  CHECK(get(good, {32 * 8, 32}) == 0xaabbcc);
  CHECK(get(good, {36 * 8, 32}) == 0x01020304);
  CHECK(get(good, {44 * 8, 32}) == 77);
  CHECK(get(good, {56 * 8, 32}) == (0x0bu << 24 | kQpn));
  CHECK(get(good, {60 * 8, 16}) == 0x1234);
  CHECK(good[63] == 0x30);
  // The owner's bit turns with each lap, so that what a program filled in is no entry on the first.
  CHECK((kUnwrittenOwner & 1) != (good[63] & 1));
  CHECK(completion_bytes(c, 127, 7)[63] == 0x30);
  CHECK(completion_bytes(c, 128, 7)[63] == 0x31);
  CHECK(completion_bytes(c, 256, 7)[63] == 0x30);
  CHECK(completion_bytes(c, 1, 0)[63] == 0x31);
  c.kind = CompletionKind::requester_error;
  c.syndrome = Syndrome::remote_access;
  const auto bad = completion_bytes(c, 0, 7);
  CHECK(bad[63] == 0xd0);
  CHECK(bad[55] == 0x13);
  CHECK(get(bad, {60 * 8, 16}) == 0x1234);
}

namespace {

Completion full_completion() {
  Completion c;
  c.kind = CompletionKind::send_immediate;
  c.qpn = kQpn;
  c.opcode = 0xff;
  c.index = 0xffff;
  c.bytes = c.immediate = 0xffffffff;
  c.user_index = 0xffffff;
  return c;
}

}  // namespace

TEST_CASE("a completion is written whole wherever it lies") {
  const auto entry = completion_bytes(full_completion(), 0, 7);
  alignas(64) std::array<std::uint8_t, 256> memory;
  for (const std::size_t at : {std::size_t{0}, std::size_t{64}, std::size_t{8}, std::size_t{40}}) {
    memory.fill(0xdd);
    const auto address = reinterpret_cast<std::uint64_t>(memory.data() + at);
    REQUIRE(write_entry({}, address, entry));
    CHECK(std::memcmp(memory.data() + at, entry.data(), entry.size()) == 0);
    CHECK(memory[at + entry.size()] == 0xdd);
    if (at != 0) CHECK(memory[at - 1] == 0xdd);
  }
  volatile std::uint64_t nowhere = 64;
  CHECK_FALSE(write_entry({}, nowhere, entry));
}

TEST_CASE("who takes the first byte that is not zero for a completion finds all of it") {
#if defined(__x86_64__)
  const bool whole = __builtin_cpu_supports("avx") != 0;
#else
  const bool whole = false;
#endif
  NEEDS(whole, "this processor writes no half of an entry at once");
  const auto entry = completion_bytes(full_completion(), 0, 20);
  for (std::size_t i = 0; i < 32; ++i) CHECK(entry[i] == 0);
  constexpr std::size_t kEntries = 40'000, kWords = kEntryBytes / sizeof(std::uint32_t);
  struct alignas(64) Place {
    std::uint32_t words[kWords] = {};
  };
  std::vector<Place> queue(kEntries);
  std::atomic<std::size_t> seen{0};
  std::atomic<bool> over{false};
  std::thread device([&] {
    for (std::size_t i = 0; i < kEntries && !over.load(); ++i) {
      (void)write_entry({}, reinterpret_cast<std::uint64_t>(&queue[i]), entry);
      while (seen.load() <= i && !over.load()) std::this_thread::yield();
    }
  });
  std::size_t torn = 0;
  // Where other programs take the processors each entry costs a slice of time.
  const std::int64_t end = now_ns() + 5 * kSecond;
  for (std::size_t i = 0; i < kEntries && now_ns() < end; ++i) {
    const auto word = [&](std::size_t n) {
      return std::atomic_ref<std::uint32_t>(queue[i].words[n]).load(std::memory_order_acquire);
    };
    for (unsigned looks = 1; word(8) == 0 && word(9) == 0 && word(11) == 0 && word(14) == 0;
         ++looks)
      if (looks % 4096 == 0) std::this_thread::yield();  // the device may need the processor
    torn += word(15) == 0 ? 1 : 0;
    seen.store(i + 1);
  }
  over.store(true);
  device.join();
  CHECK(torn == 0);
  CHECK(seen.load() > 100);
}
