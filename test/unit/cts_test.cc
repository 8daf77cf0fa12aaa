#include "proxy/wire/cts.h"

#include <cstring>

#include "test/support/catch.h"

namespace twinpath {
namespace {

constexpr std::uint64_t kAddress = 0x7f0123456789ab00;
constexpr MetaParts kParts{
    .slot = 63, .sub = 7, .generation = 255, .group = 8, .no_completion = true, .copyable = true};

std::uint32_t rkey_of(int rail) { return 0xabcd0000u + static_cast<std::uint32_t>(rail); }

void write_cell(const CtsLayout& layout, std::uint8_t* cell, std::uint64_t seq) {
  layout.fill(cell, kAddress, 1u << 30, -77, cell_meta(kParts, 456), seq, rkey_of);
}

TEST_CASE("A clear-to-send cell comes back as it went, narrow and wide") {
  for (int rails : {1, 2, 8}) {
    const CtsLayout layout(rails);
    alignas(64) std::uint8_t cell[64] = {};
    write_cell(layout, cell, 12345);
    CHECK(layout.ready(cell, 12345));
    const CellView view(cell);
    CHECK(view.address() == kAddress);
    CHECK(view.bytes() == 1u << 30);
    CHECK(view.tag() == -77);
    for (int rail = 0; rail < rails; ++rail) CHECK(view.rkey(rail) == rkey_of(rail));
    const CellMeta meta = view.meta();
    CHECK(meta.valid());
    CHECK(int{meta.slot()} == 63);
    CHECK(int{meta.sub()} == 7);
    CHECK(int{meta.generation()} == 255);
    CHECK(int{meta.group()} == 8);
    CHECK(meta.no_completion());
    CHECK(meta.copyable());
    CHECK(int{meta.parcels()} == 456 % 256);
    std::uint8_t copy[64];
    CHECK(view.copy(copy, layout.stride()).rkey(rails - 1) == rkey_of(rails - 1));
  }
}

TEST_CASE("Each field of a cell's meta is its own") {
  for (const std::uint32_t bit : {0u, 1u}) {
    const CellMeta slot(cell_meta({bit, 0, 0, 1, false, false}, 0)),
        sub(cell_meta({0, bit, 0, 2, false, false}, 0)),
        generation(cell_meta({0, 0, bit, 1, false, false}, 0)),
        told(cell_meta({0, 0, 0, 1, bit == 1, false}, 0)),
        copyable(cell_meta({0, 0, 0, 1, false, bit == 1}, 0)),
        parcels(cell_meta({0, 0, 0, 1, false, false}, bit));
    CHECK(slot.slot() == bit);
    CHECK(sub.sub() == bit);
    CHECK(generation.generation() == bit);
    CHECK(told.no_completion() == (bit == 1));
    CHECK(copyable.copyable() == (bit == 1));
    CHECK(parcels.parcels() == bit);
    CHECK(slot.lone());
    CHECK_FALSE(sub.lone());
    CHECK(told.lone() == (bit == 0));
  }
}

TEST_CASE("A cell is ready for its own number only, also when the number wraps") {
  const CtsLayout layout(1);
  alignas(64) std::uint8_t cell[32] = {};
  CHECK_FALSE(layout.ready(cell, 0));
  for (std::uint64_t seq : {std::uint64_t{0}, std::uint64_t{256}, std::uint64_t{0xfffffffe},
                            std::uint64_t{0x100000000}}) {
    write_cell(layout, cell, seq);
    CHECK(layout.ready(cell, seq));
    CHECK_FALSE(layout.ready(cell, seq + kCtsCells));
    CHECK_FALSE(layout.ready(cell, seq - kCtsCells));
  }
}

TEST_CASE("A lone cell is 28 bytes on the wire and its last word is the generation") {
  const CtsLayout narrow(1), wide(2);
  CHECK(narrow.stride() == 32);
  CHECK(narrow.wire_bytes(1) == 28);
  CHECK(narrow.wire_bytes(8) == 7 * 32 + 28);
  CHECK(wide.stride() == 64);
  CHECK(wide.wire_bytes(1) == 56);
  alignas(64) std::uint8_t full[32] = {}, cut[32] = {};
  write_cell(narrow, full, 9);
  std::memcpy(cut, full, narrow.wire_bytes(1) - 4);
  CHECK_FALSE(narrow.ready(cut, 9));
  std::memcpy(cut, full, narrow.wire_bytes(1));
  CHECK(narrow.ready(cut, 9));
}

TEST_CASE("A cell with bits that no receiver sets is refused") {
  CHECK(CellMeta(cell_meta(kParts, 0)).valid());
  CHECK_FALSE(CellMeta(cell_meta(kParts, 0) | 1u << 30).valid());
  CHECK_FALSE(CellMeta(cell_meta(kParts, 0) | 1u << 31).valid());
  MetaParts bad = kParts;
  bad.group = 2;  // sub 7 of 2
  CHECK_FALSE(CellMeta(cell_meta(bad, 0)).valid());
}

}  // namespace
}  // namespace twinpath
