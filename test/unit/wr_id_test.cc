#include "proxy/wire/wr_id.h"

#include "proxy/wire/cts.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

TEST_CASE("A work request id comes back as it went, at the bounds of every field") {
  for (int comm : {0, 1, 65535}) {
    for (int epoch : {0, 65535}) {
      for (WrKind kind : {WrKind::send_data, WrKind::cts, WrKind::receive, WrKind::flush}) {
        for (int slot : {0, 1, 255, 4095}) {
          for (int generation : {0, 65535}) {
            const auto u16 = [](int v) { return static_cast<std::uint16_t>(v); };
            const WrId id{u16(comm), u16(epoch), kind, u16(slot), u16(generation)};
            CHECK(decode_wr_id(encode(id)) == id);
          }
        }
      }
    }
  }
}

TEST_CASE("D5: an immediate comes back as it went, for every slot, sub and chunk count") {
  for (int slot = 0; slot < kRecvSlots; ++slot) {
    for (int sub = 0; sub < kMaxRecvs; ++sub) {
      for (int chunks = 1; chunks <= kMaxQps; ++chunks) {
        const Immediate in{static_cast<std::uint8_t>(slot), static_cast<std::uint8_t>(sub),
                           static_cast<std::uint8_t>(slot * 3 + 200),
                           static_cast<std::uint8_t>(chunks), chunks % 3 == 0};
        Immediate out;
        REQUIRE(decode_immediate(encode(in), out));
        REQUIRE(out == in);
      }
    }
  }
  Immediate out;
  Immediate group;
  group.slot = 5;
  group.sub = 7;
  for (const bool sized : {false, true}) {
    group.whole_group = true;
    group.sized = sized;
    REQUIRE(decode_immediate(encode(group), out));
    CHECK(out == group);
    CHECK((encode(group) & kWholeGroupBit) != 0);
  }
  group.chunks = 2;
  CHECK_FALSE(decode_immediate(encode(group), out));
  group.chunks = 1;
  group.in_order = true;
  CHECK_FALSE(decode_immediate(encode(group), out));
  CHECK_FALSE(decode_immediate(1u << 25, out));
  CHECK_FALSE(decode_immediate(0x80000000u, out));
}

}  // namespace
}  // namespace twinpath
