// Encoding of control messages.
#include "plugin/base/wire.h"

#include <limits>

#include "test/support/catch.h"

namespace twinpath {

TEST_CASE("integers are written little-endian whatever the host") {
  Writer w;
  w.integer(std::uint32_t{0x01020304});
  w.integer(std::uint16_t{0xa0b0});
  CHECK(w.bytes() == std::vector<std::uint8_t>{4, 3, 2, 1, 0xb0, 0xa0});
}

TEST_CASE("what a Writer wrote a Reader reads") {
  Writer w;
  w.integer(std::int32_t{-5});
  w.integer(std::numeric_limits<std::uint64_t>::max());
  w.integer(std::uint8_t{7});
  w.integer(std::numeric_limits<std::int64_t>::min());
  w.text("mlx5_0");
  w.text("");
  const std::array<std::uint8_t, 3> raw{9, 8, 7};
  w.raw(raw.data(), raw.size());
  const auto bytes = w.take();

  Reader r(bytes);
  CHECK(r.integer<std::int32_t>() == -5);
  CHECK(r.integer<std::uint64_t>() == std::numeric_limits<std::uint64_t>::max());
  CHECK(r.integer<std::uint8_t>() == 7);
  CHECK(r.integer<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK(r.text() == "mlx5_0");
  CHECK(r.text().empty());
  std::array<std::uint8_t, 3> back{};
  r.raw(back.data(), back.size());
  CHECK(back == raw);
  CHECK(r.left() == 0);
  CHECK(r.ok());
}

TEST_CASE("a read past the end gives zeros and spoils the reader for good") {
  const std::array<std::uint8_t, 3> bytes{1, 2, 3};
  SECTION("integer") {
    Reader r(bytes);
    CHECK(r.integer<std::uint32_t>() == 0);
    CHECK_FALSE(r.ok());
    CHECK(r.integer<std::uint8_t>() == 0);  // bytes are there, but the message is not trusted
    CHECK(r.left() == 0);
  }
  SECTION("raw bytes") {
    Reader r(bytes);
    std::array<std::uint8_t, 4> out{0xff, 0xff, 0xff, 0xff};
    r.raw(out.data(), out.size());
    CHECK(out == std::array<std::uint8_t, 4>{});
    CHECK_FALSE(r.ok());
  }
  SECTION("text whose length lies") {
    const std::array<std::uint8_t, 4> lie{0xff, 0xff, 'a', 'b'};
    Reader r(lie);
    CHECK(r.text().empty());
    CHECK_FALSE(r.ok());
  }
  SECTION("skip") {
    Reader r(bytes);
    r.skip(2);
    CHECK(r.left() == 1);
    r.skip(2);
    CHECK_FALSE(r.ok());
  }
  SECTION("a length that would wrap around") {
    Reader r(bytes);
    r.skip(1);
    r.skip(std::numeric_limits<std::size_t>::max());
    CHECK_FALSE(r.ok());
  }
}

TEST_CASE("texts longer than 65535 bytes are cut, not corrupted") {
  Writer w;
  w.text(std::string(70000, 'x'));
  w.integer(std::uint8_t{1});
  Reader r(w.bytes());
  CHECK(r.text() == std::string(65535, 'x'));
  CHECK(r.integer<std::uint8_t>() == 1);
  CHECK(r.ok());
}

}  // namespace twinpath
