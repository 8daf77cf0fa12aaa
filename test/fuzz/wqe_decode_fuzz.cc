// A send queue is memory that a kernel writes: whatever lies in it, a WQE is refused, or its
// operation stays inside a window that its key may be used for.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "gda/served/front/decode.h"
#include "gda/served/front/fetch.h"
#include "gda/served/front/key_table.h"

namespace {

using namespace twinpath::gda;

constexpr std::uint32_t kQpn = 0x123;
constexpr std::uint64_t kBytes = 0x10000;
constexpr KeyedMemory kLocal{0x100000, kBytes, 71};
constexpr KeyedMemory kRemote[2] = {{0x500000, kBytes, 72}, {0x900000, kBytes, 73}};

// Keys 0x100, 0x200, 0x300 of the corpus.
struct Keys {
  Keys() : table(2) {
    data = *table.add(kLocal, kRemote, kLocalRead | kLocalWrite | kRemoteRead | kRemoteWrite);
    atomic = *table.add(kLocal, kRemote, kRemoteAtomic);
    sink = *table.add(kLocal, kRemote, kLocalRead | kLocalWrite);
  }
  KeyTable table;
  std::uint32_t data = 0, atomic = 0, sink = 0;
};

void require(bool holds) {
  if (!holds) std::abort();
}

bool inside(const KeyedMemory& memory, std::uint64_t address, std::uint64_t bytes,
            std::uint32_t key) {
  return address >= memory.address && address - memory.address <= kBytes &&
         bytes <= kBytes - (address - memory.address) && key == memory.fabric_key;
}

void check(const WqeWords& words, std::uint64_t index) {
  static const Keys keys;
  const Decoded out = decode(words, index, kQpn, keys.table, 1);
  std::array<std::uint8_t, kWqeBytes> bytes;
  std::memcpy(bytes.data(), words.data(), bytes.size());
  const Operation& op = out.operation;
  if (out.syndrome != Syndrome::none) return;
  // Said again from the bytes, without the decoder's help.
  require(bytes[0] == 0 && bytes[1] == (index >> 8 & 0xff) && bytes[2] == (index & 0xff));
  require(bytes[4] == 0 && bytes[5] == 0x01 && bytes[6] == 0x23);
  const int opcode = bytes[3];
  const int segments = bytes[7];
  if (out.wait) {
    require(opcode == 0x0f && segments == 2);
    return;
  }
  switch (op.kind) {
    case OperationKind::nop:
      return require(opcode == 0x00 && segments == 1);
    case OperationKind::write:
      require(opcode == 0x08 && segments == 3 && bytes[32] < 0x80);
      require(inside(kLocal, op.local, op.bytes, op.lkey));
      return require(inside(kRemote[1], op.remote, op.bytes, op.rkey));
    case OperationKind::read:
      require(opcode == 0x10 && segments == 3 && bytes[32] < 0x80);
      require(inside(kLocal, op.local, op.bytes, op.lkey));
      return require(inside(kRemote[1], op.remote, op.bytes, op.rkey));
    case OperationKind::write_inline:
      require(opcode == 0x08 && bytes[32] == 0x80 && op.bytes <= kMaxInline);
      require(segments == (op.bytes > 12 ? 4 : 3));
      require(std::equal(op.inline_data.begin(), op.inline_data.begin() + op.bytes, &bytes[36]));
      return require(inside(kRemote[1], op.remote, op.bytes, op.rkey));
    case OperationKind::fetch_add:
      require(opcode == 0x12 && segments == 4 && op.bytes == 8 && op.remote % 8 == 0);
      require(inside(kLocal, op.local, 8, op.lkey));
      return require(inside(kRemote[1], op.remote, 8, op.rkey));
    case OperationKind::dump:
      require(opcode == 0x23 && segments == 2);
      return require(inside(kLocal, op.local, op.bytes, op.lkey));
  }
  std::abort();
}

}  // namespace

// Input: 64 bytes of WQE, 8 of poison; shorter ones end in zeros.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<std::uint64_t, kWqeWords + 1> input{};
  if (size > 0) std::memcpy(input.data(), data, std::min(size, sizeof input));
  WqeWords words;
  std::copy_n(input.begin(), kWqeWords, words.begin());
  // The number it gives itself, so that the checks behind that one are reached; and another.
  const std::uint64_t own = first_dword(words[0]) >> 8 & 0xffff;
  check(words, own);
  check(words, own + 0x10001);

  // What is complete for one poison says so whatever lies behind its segments.
  alignas(8) std::uint8_t slot[kWqeBytes];
  const std::uint64_t poison = input[kWqeWords];
  poison_slot(slot, poison);
  require(look_at(copy_wqe(slot), own, kQpn, poison) == Written::no);
  if (look_at(words, own, kQpn, poison) == Written::whole) {
    const std::size_t segments = std::min<std::size_t>(second_dword(words[0]) & 0xff, 4);
    for (std::size_t i = std::max<std::size_t>(segments, 1) * 2; i < kWqeWords; ++i)
      words[i] = poison;
    require(look_at(words, own, kQpn, poison) == Written::whole);
  }
  return 0;
}
