#include "proxy/wire/cts.h"

#include <cstring>

#include "test/support/catch.h"

namespace twinpath {
namespace {

Cts sample(int rails) {
  Cts c;
  c.address = 0x7f0123456789ab00;
  c.bytes = 1u << 30;
  c.tag = -77;
  c.group = 8;
  c.sub = 7;
  c.slot = 63;
  c.generation = 255;
  c.no_completion = true;
  c.copyable = true;
  c.parcels = 200;
  for (int i = 0; i < rails; ++i)
    c.rkeys[static_cast<std::size_t>(i)] = 0xabcd0000u + static_cast<std::uint32_t>(i);
  return c;
}

TEST_CASE("A clear-to-send cell comes back as it went, narrow and wide") {
  for (int rails : {1, 2, 8}) {
    const CtsLayout layout(rails);
    alignas(64) std::uint8_t cell[64] = {};
    const Cts in = sample(rails);
    layout.write(cell, in, 12345);
    CHECK(layout.ready(cell, 12345));
    CHECK(CtsLayout::tag(cell) == -77);
    Cts out;
    REQUIRE(layout.read(cell, out));
    CHECK(out == in);
  }
}

TEST_CASE("A cell is ready for its own number only, also when the number wraps") {
  const CtsLayout layout(1);
  alignas(64) std::uint8_t cell[32] = {};
  CHECK_FALSE(layout.ready(cell, 0));
  for (std::uint64_t seq : {std::uint64_t{0}, std::uint64_t{256}, std::uint64_t{0xfffffffe},
                            std::uint64_t{0x100000000}}) {
    layout.write(cell, sample(1), seq);
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
  narrow.write(full, sample(1), 9);
  std::memcpy(cut, full, narrow.wire_bytes(1) - 4);
  CHECK_FALSE(narrow.ready(cut, 9));
  std::memcpy(cut, full, narrow.wire_bytes(1));
  CHECK(narrow.ready(cut, 9));
}

TEST_CASE("A cell with bits that no receiver sets is refused") {
  const CtsLayout layout(1);
  alignas(64) NarrowCell cell{};
  Cts out;
  layout.write(&cell, sample(1), 0);
  cell.meta |= 1u << 30;
  CHECK_FALSE(layout.read(&cell, out));
  Cts bad = sample(1);
  bad.group = 2;  // sub 7 of 2
  layout.write(&cell, bad, 0);
  CHECK_FALSE(layout.read(&cell, out));
}

}  // namespace
}  // namespace twinpath
