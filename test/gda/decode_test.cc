// What the front end accepts, and with which syndrome it refuses everything else.
#include "gda/served/front/decode.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gda/abi/wqe.h"
#include "test/gda/rig.h"
#include "test/support/catch.h"

using namespace twinpath::gda;

namespace {

constexpr auto kQpError = Syndrome::local_qp_operation;
constexpr auto kProtection = Syndrome::local_protection;
constexpr auto kRemote = Syndrome::remote_access;

struct Change {
  int dword;  // of the WQE, 0 to 15
  std::uint32_t value;
};

struct Malformed {
  std::string what;
  Wqe (*base)(const Rig&, std::uint64_t index, std::uint32_t qpn);
  std::vector<Change> changes;
  Syndrome expected;
};

constexpr std::uint64_t kOffset = 0x40;
const std::uint8_t kData[32] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

Wqe write(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_write(i, qpn, kOffset, swap32(rig.data), kOffset, swap32(rig.data), 256);
}
Wqe read(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_read(i, qpn, kOffset, swap32(rig.data), kOffset, swap32(rig.data), 256);
}
Wqe inline8(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_write_inline(i, qpn, kOffset, swap32(rig.data), kData, 8);
}
Wqe inline28(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_write_inline(i, qpn, kOffset, swap32(rig.data), kData, 28);
}
Wqe fetch_add(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_fetch_add(i, qpn, kOffset, swap32(rig.table), 1, swap32(rig.sink));
}
Wqe dump(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_dump(i, qpn, swap32(rig.sink));
}
Wqe nop(const Rig&, std::uint64_t i, std::uint32_t qpn) { return make_nop(i, qpn); }
Wqe wait(const Rig& rig, std::uint64_t i, std::uint32_t qpn) {
  return make_wait(i, qpn, 0, Rig::cqn_of(*rig.queues[1]));
}

// Always WQE 1 of queue 0x100.  Dwords: 0 opmod/index/opcode, 1 qpn/ds, 4-5 raddr, 6 rkey, 8 count,
// 9 lkey, 10-11 laddr; of FA 8-9 add, 12 count, 13 lkey, 14-15 laddr; of WAIT 6 index, 7 cqn; of
// DUMP 4 count, 5 lkey.
std::vector<Malformed> malformed(const Rig& rig) {
  const auto control = [](std::uint32_t opcode) { return 0x100u | opcode; };
  const auto segments = [](std::uint32_t ds) { return 0x100u << 8 | ds; };
  const std::uint32_t stale = rig.data ^ 0x01;
  const std::uint32_t unknown = 0x00fff00;
  const auto bytes = static_cast<std::uint32_t>(kWindowBytes);
  const std::uint32_t self = Rig::cqn_of(*rig.queues[0]);
  const std::uint32_t other = Rig::cqn_of(*rig.queues[1]);
  return {
      {"opcode SEND", write, {{0, control(0x0a)}}, kQpError},
      {"opcode SEND_IMM", write, {{0, control(0x0b)}}, kQpError},
      {"opcode WRITE_IMM", write, {{0, control(0x09)}}, kQpError},
      {"opcode TSO", write, {{0, control(0x0e)}}, kQpError},
      {"opcode ATOMIC_CS", fetch_add, {{0, control(0x11)}}, kQpError},
      {"opcode MASKED_CS", fetch_add, {{0, control(0x14)}}, kQpError},
      {"opcode MASKED_FA", fetch_add, {{0, control(0x15)}}, kQpError},
      {"opcode FMR", write, {{0, control(0x19)}}, kQpError},
      {"opcode LOCAL_INVAL", write, {{0, control(0x1b)}}, kQpError},
      {"opcode CONFIG_CMD", write, {{0, control(0x1f)}}, kQpError},
      {"opcode SET_PSV", write, {{0, control(0x20)}}, kQpError},
      {"opcode UMR", write, {{0, control(0x25)}}, kQpError},
      {"opcode 0xff", write, {{0, control(0xff)}}, kQpError},
      {"opmod 1 of WRITE", write, {{0, 0x01000108}}, kQpError},
      {"opmod 8 of FA", fetch_add, {{0, 0x08000112}}, kQpError},
      {"opmod 0xff of NOP", nop, {{0, 0xff000100}}, kQpError},
      {"opmod 1 of WAIT", wait, {{0, 0x0100010f}}, kQpError},
      {"index of the WQE before", write, {{0, 0x00000008}}, kQpError},
      {"index of the next WQE", write, {{0, 0x00000208}}, kQpError},
      {"index one lap ahead", write, {{0, 0x00001108}}, kQpError},
      {"index with the high bit", nop, {{0, 0x00800100}}, kQpError},
      {"QPN of another queue", write, {{1, 0x101u << 8 | 3}}, kQpError},
      {"QPN 0", write, {{1, 3}}, kQpError},
      {"QPN 0xffffff", write, {{1, 0xffffff03}}, kQpError},
      {"WRITE of 0 segments", write, {{1, segments(0)}}, kQpError},
      {"WRITE of 1 segment", write, {{1, segments(1)}}, kQpError},
      {"WRITE of 2 segments", write, {{1, segments(2)}}, kQpError},
      {"WRITE with two pieces of memory", write, {{1, segments(4)}}, kQpError},
      {"WRITE of 5 segments", write, {{1, segments(5)}}, kQpError},
      {"WRITE of 63 segments", write, {{1, segments(63)}}, kQpError},
      {"WRITE of 255 segments", write, {{1, segments(255)}}, kQpError},
      {"READ of 4 segments", read, {{1, segments(4)}}, kQpError},
      {"READ of 2 segments", read, {{1, segments(2)}}, kQpError},
      {"FA of 3 segments", fetch_add, {{1, segments(3)}}, kQpError},
      {"FA of 5 segments", fetch_add, {{1, segments(5)}}, kQpError},
      {"NOP of 0 segments", nop, {{1, segments(0)}}, kQpError},
      {"NOP of 2 segments", nop, {{1, segments(2)}}, kQpError},
      {"WAIT of 1 segment", wait, {{1, segments(1)}}, kQpError},
      {"WAIT of 3 segments", wait, {{1, segments(3)}}, kQpError},
      {"DUMP of 1 segment", dump, {{1, segments(1)}}, kQpError},
      {"DUMP of 3 segments", dump, {{1, segments(3)}}, kQpError},
      {"inline of 8 bytes in 4 segments", inline8, {{1, segments(4)}}, kQpError},
      {"inline of 28 bytes in 3 segments", inline28, {{1, segments(3)}}, kQpError},
      {"inline of 13 bytes in 3 segments", inline8, {{8, 0x8000000d}}, kQpError},
      {"inline of 29 bytes", inline28, {{8, 0x8000001d}}, kQpError},
      {"inline of 2^31-1 bytes", inline28, {{8, 0xffffffff}}, kQpError},
      {"inline flag in a READ", read, {{8, 0x80000008}}, kQpError},
      {"inline flag in FA's data segment", fetch_add, {{12, 0x80000008}}, kQpError},
      {"inline flag in DUMP", dump, {{4, 0x80000001}}, kQpError},
      {"lkey 0", write, {{9, 0}}, kProtection},
      {"lkey unknown", write, {{9, unknown}}, kProtection},
      {"lkey beyond the table", write, {{9, 0xffffff00}}, kProtection},
      {"lkey of a window that is gone", write, {{9, stale}}, kProtection},
      {"lkey not swapped", write, {{9, swap32(rig.data)}}, kProtection},
      {"lkey without the right to read", write, {{9, rig.table}}, kProtection},
      {"lkey without the right to write", read, {{9, rig.read_only}}, kProtection},
      {"local offset past the end", write, {{11, bytes}}, kProtection},
      {"local range past the end", write, {{11, bytes - 255}}, kProtection},
      {"local range that wraps", write, {{10, 0xffffffff}, {11, 0xffffff80}}, kProtection},
      {"local address instead of offset", write, {{11, 0x100000}}, kProtection},
      {"local length 2^31-1", write, {{8, 0x7fffffff}}, kProtection},
      {"READ into a range past the end", read, {{11, bytes - 255}}, kProtection},
      {"rkey 0", write, {{6, 0}}, kRemote},
      {"rkey unknown", write, {{6, unknown}}, kRemote},
      {"rkey of a window that is gone", write, {{6, stale}}, kRemote},
      {"rkey without the right to write", write, {{6, rig.read_only}}, kRemote},
      {"rkey without the right to read", read, {{6, rig.sink}}, kRemote},
      {"WRITE to the signal table", write, {{6, rig.table}}, kRemote},
      {"READ of the signal table", read, {{6, rig.table}}, kRemote},
      {"remote offset past the end", write, {{5, bytes}}, kRemote},
      {"remote range past the end", write, {{5, bytes - 255}}, kRemote},
      {"remote range that wraps", write, {{4, 0xffffffff}, {5, 0xffffff80}}, kRemote},
      {"remote address instead of offset", write, {{5, 0x900000}}, kRemote},
      {"inline past the end", inline8, {{5, bytes - 7}}, kRemote},
      {"inline with rkey unknown", inline8, {{6, unknown}}, kRemote},
      {"inline to the signal table", inline8, {{6, rig.table}}, kRemote},
      {"READ of a range past the end", read, {{5, bytes - 255}}, kRemote},
      {"FA on a data window", fetch_add, {{6, rig.data}}, kRemote},
      {"FA with rkey unknown", fetch_add, {{6, unknown}}, kRemote},
      {"FA past the end", fetch_add, {{5, 4096}}, kRemote},
      {"FA that wraps", fetch_add, {{4, 0xffffffff}, {5, 0xfffffff8}}, kRemote},
      {"FA at offset 1", fetch_add, {{5, 0x41}}, Syndrome::remote_invalid_request},
      {"FA at offset 4", fetch_add, {{5, 0x44}}, Syndrome::remote_invalid_request},
      {"FA of 4 bytes", fetch_add, {{12, 4}}, Syndrome::local_length},
      {"FA of 0 bytes", fetch_add, {{12, 0}}, Syndrome::local_length},
      {"FA of 16 bytes", fetch_add, {{12, 16}}, Syndrome::local_length},
      {"FA with sink unknown", fetch_add, {{13, unknown}}, kProtection},
      {"FA with a read-only sink", fetch_add, {{13, rig.read_only}}, kProtection},
      {"FA past the sink's end", fetch_add, {{15, 1}}, kProtection},
      {"DUMP with sink unknown", dump, {{5, unknown}}, kProtection},
      {"DUMP past the sink's end", dump, {{7, 8}}, kProtection},
      {"DUMP of more than the sink", dump, {{4, 9}}, kProtection},
      {"WAIT for an unknown CQ", wait, {{7, 0x777}}, kQpError},
      {"WAIT for CQ 0", wait, {{7, 0}}, kQpError},
      {"WAIT for a CQ number with a high byte", wait, {{7, other | 0x01000000}}, kQpError},
      {"WAIT for its own CQ", wait, {{7, self}}, kQpError},
      {"WAIT for its own past", wait, {{6, 0}, {7, self}}, kQpError},
      {"WAIT a lap ahead", wait, {{6, 17}}, kQpError},
      {"WAIT far ahead", wait, {{6, 0x7ffffff0}}, kQpError},
      {"WAIT for a CQE before the first", wait, {{6, 0xfffffff0}}, kQpError},
  };
}

Wqe change(Wqe wqe, const std::vector<Change>& changes) {
  for (const Change& c : changes) {
    auto& word = wqe.words[static_cast<std::size_t>(c.dword) / 2];
    const unsigned shift = c.dword % 2 != 0 ? 32 : 0;
    word = (word & ~(std::uint64_t{0xffffffff} << shift)) | std::uint64_t{swap32(c.value)} << shift;
  }
  wqe.segments = 4;  // the whole slot is written
  wqe.end = 0;
  return wqe;
}

}  // namespace

TEST_CASE("Every malformed WQE gets its syndrome and harms its queue alone") {
  std::size_t count = 0;
  {
    Rig rig;
    rig.make();
    rig.make();
    count = malformed(rig).size();
  }
  REQUIRE(count >= 60);
  for (std::size_t i = 0; i < count; ++i) {
    Rig rig;
    RecordingBackEnd other;
    Queue& bad = rig.make();
    Queue& good = rig.make(16, &other);
    const Malformed row = malformed(rig)[i];
    INFO(row.what);
    // The WAIT rows ask for CQE 0 of a queue that has written one.
    good.post([&](std::uint64_t n) { return write(rig, n, good.device.qpn); });
    REQUIRE(good.front->scan(64) == 1);
    good.front->complete(0);

    bad.post([&](std::uint64_t n) { return write(rig, n, bad.device.qpn); });
    bad.post(
        [&](std::uint64_t n) { return change(row.base(rig, n, bad.device.qpn), row.changes); });
    bad.post([&](std::uint64_t n) { return write(rig, n, bad.device.qpn); });
    good.post([&](std::uint64_t n) { return write(rig, n, good.device.qpn); });
    bad.front->scan(64);
    good.front->scan(64);

    // The error waits for the good WQE before it.
    CHECK(bad.front->failed());
    CHECK(bad.result(1) == static_cast<Syndrome>(0xff));
    REQUIRE(rig.back_end.seen.size() == 1);
    bad.front->complete(0);
    bad.front->scan(64);
    CHECK(bad.result(0) == Syndrome::none);
    CHECK(bad.result(1) == row.expected);
    CHECK(bad.result(2) == Syndrome::flushed);
    CHECK(rig.back_end.seen.size() == 1);

    CHECK_FALSE(good.front->failed());
    REQUIRE(other.seen.size() == 2);
    good.front->complete(1);
    CHECK(good.result(1) == Syndrome::none);
  }
}

TEST_CASE("The unchanged WQEs of the table are all accepted") {
  Rig rig;
  Queue& queue = rig.make();
  Queue& other = rig.make();
  other.post([&](std::uint64_t n) { return nop(rig, n, other.device.qpn); });
  other.front->scan(1);
  other.front->complete(0);
  rig.back_end.seen.clear();
  for (auto base : {write, read, inline8, inline28, fetch_add, dump, nop, wait})
    queue.post([&](std::uint64_t n) { return change(base(rig, n, queue.device.qpn), {}); });
  CHECK(queue.front->scan(64) == 8);
  queue.front->complete(6);
  for (std::uint64_t i = 0; i < 8; ++i) CHECK(queue.result(i) == Syndrome::none);
  CHECK(rig.back_end.seen.size() == 7);
}

TEST_CASE("Operations carry addresses and keys of the fabric, not the kernel's") {
  Rig rig;
  const auto decoded = [&](const Wqe& wqe) { return decode(wqe.words, 1, 0x100, rig.keys, 1); };

  Operation op = decoded(write(rig, 1, 0x100)).operation;
  CHECK(op.kind == OperationKind::write);
  CHECK((op.local == kLocalAt + kOffset && op.lkey == 71));
  CHECK((op.remote == kRemoteAt + kOffset && op.rkey == 73 && op.bytes == 256));

  op = decoded(read(rig, 1, 0x100)).operation;
  CHECK(op.kind == OperationKind::read);
  CHECK((op.local == kLocalAt + kOffset && op.remote == kRemoteAt + kOffset && op.bytes == 256));

  op = decoded(inline28(rig, 1, 0x100)).operation;
  CHECK(op.kind == OperationKind::write_inline);
  CHECK((op.bytes == 28 && op.remote == kRemoteAt + kOffset));
  CHECK(std::equal(op.inline_data.begin(), op.inline_data.end(), kData));

  op = decoded(
           make_fetch_add(1, 0x100, 0x18, swap32(rig.table), ~std::uint64_t{0}, swap32(rig.sink)))
           .operation;
  CHECK(op.kind == OperationKind::fetch_add);
  CHECK((op.add == ~std::uint64_t{0} && op.remote == kRemoteAt + 0x18 && op.local == kLocalAt));

  CHECK(decoded(dump(rig, 1, 0x100)).operation.kind == OperationKind::dump);
  CHECK(decoded(nop(rig, 1, 0x100)).operation.kind == OperationKind::nop);
}

TEST_CASE("Bytes that NCCL leaves uninitialised do not matter") {
  Rig rig;
  rig.make();
  rig.make();
  for (auto base : {write, read, inline8, inline28, fetch_add, dump, nop, wait}) {
    const Wqe plain = base(rig, 1, 0x100);
    const Decoded want = decode(plain.words, 1, 0x100, rig.keys, 1);
    for (const std::uint64_t garbage : {~std::uint64_t{0}, std::uint64_t{0x1234567890abcdef}}) {
      Wqe dirty = plain;
      add_garbage(dirty, garbage);
      const auto opcode = static_cast<Opcode>(want.opcode);
      if (opcode == Opcode::fetch_add) dirty.words[5] = garbage;
      const Decoded got = decode(dirty.words, 1, 0x100, rig.keys, 1);
      CHECK(got.syndrome == want.syndrome);
      CHECK(got.syndrome == Syndrome::none);
      CHECK((got.wait == want.wait && got.awaited == want.awaited && got.cqn == want.cqn));
      CHECK((got.operation.kind == want.operation.kind && got.operation.add == want.operation.add &&
             got.operation.bytes == want.operation.bytes &&
             got.operation.local == want.operation.local &&
             got.operation.remote == want.operation.remote &&
             got.operation.inline_data == want.operation.inline_data));
    }
  }
}
