// The placement record: its bytes stay what they are, and damaged or foreign ones are refused.
#include "topology/decide/record.h"

#include <algorithm>
#include <random>

#include "test/support/catch.h"

namespace twinpath {
namespace {

PlacementRecord sample() {
  PlacementRecord p;
  p.host = 0x1122334455667788u;
  p.topology = 0x99aabbccddeeff00u;
  p.gpu = 3;
  p.hca = 5;
  p.rail = 2;
  p.wish = ModeChoice::gda_cpu;
  p.distance = Distance::pxb;
  p.pf_distance = Distance::node;
  p.flags = kFlagDataDirect | kFlagVm;
  p.capabilities = kCanLand | kCanSource | kCanGpuIssue;
  p.land.log2 = kAlwaysDirect;
  p.source.log2 = 16;
  p.land.rule = Rule::w2;
  p.source.rule = Rule::r3;
  p.land.reason = Reason::dd_used;
  p.source.reason = Reason::read_unproven;
  p.ring_reason = Reason::uar_perm;
  p.compute_capability = 103;
  p.gdr_error = 524;
  p.ring_error = 800;
  p.port_gbps = 800;
  p.pcie_dgbs = 1260;
  p.read_dgbs = 61;
  p.write_dgbs = 143;
  return p;
}

using Bytes64 = std::array<std::uint8_t, kRecordBytes>;

void seal(Bytes64& bytes) {
  const std::uint32_t crc = crc32(std::span(bytes).first(kRecordBytes - 4));
  for (std::size_t i = 0; i < 4; ++i)
    bytes[kRecordBytes - 4 + i] = static_cast<std::uint8_t>((crc >> (8 * i)) & 0xff);
}

// The refusal's text; empty when the bytes are accepted.
std::string refusal(std::span<const std::uint8_t> bytes) {
  PlacementRecord out = sample();
  std::string why;
  const bool accepted = decode_record(bytes, out, why);
  CHECK(accepted == why.empty());
  if (!accepted) CHECK(out == PlacementRecord{});
  return why;
}

}  // namespace

TEST_CASE("the checksum is the CRC-32 of Ethernet and zip") {
  const std::string_view digits = "123456789";
  std::vector<std::uint8_t> bytes(digits.begin(), digits.end());
  CHECK(crc32(bytes) == 0xcbf43926u);
  CHECK(crc32({}) == 0);
}

TEST_CASE("a record's bytes are the documented ones") {
  const Bytes64 bytes = encode_record(sample());
  const Bytes64 expected = [] {
    Bytes64 b{0x54,
              0x50,
              1,
              64,  // head
              3,
              5,
              2,
              3,  // indices, wish
              0x88,
              0x77,
              0x66,
              0x55,
              0x44,
              0x33,
              0x22,
              0x11,  // host
              0x00,
              0xff,
              0xee,
              0xdd,
              0xcc,
              0xbb,
              0xaa,
              0x99,  // topology
              2,
              5,
              5,
              0,  // distances, flags
              0x03,
              0x02,
              0,
              0,  // capabilities
              255,
              16,
              2,
              9,                                                 // limits, rules
              static_cast<std::uint8_t>(Reason::dd_used),        //
              static_cast<std::uint8_t>(Reason::read_unproven),  //
              static_cast<std::uint8_t>(Reason::uar_perm),
              103,  //
              0x0c,
              0x02,
              0x20,
              0x03,
              0x20,
              0x03,
              0xec,
              0x04,
              61,
              0,
              143,
              0};  // errors, rates
    seal(b);
    return b;
  }();
  CHECK(bytes == expected);
  CHECK(refusal(bytes).empty());
}

TEST_CASE("any record comes back as it was") {
  std::mt19937_64 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 2000; ++i) {
    PlacementRecord p = sample();
    p.host = random();
    p.topology = random();
    p.gpu = static_cast<std::uint8_t>(below(256));
    p.wish = static_cast<ModeChoice>(below(kModeChoices));
    p.distance = static_cast<Distance>(below(kDistances));
    p.pf_distance = static_cast<Distance>(below(kDistances));
    p.flags = static_cast<std::uint16_t>(random());
    p.capabilities = static_cast<std::uint32_t>(random());
    p.land.log2 = static_cast<std::uint8_t>(below(256));
    p.source.rule = static_cast<Rule>(below(kRules));
    p.ring_reason = static_cast<Reason>(below(kReasons));
    p.write_dgbs = static_cast<std::uint16_t>(random());
    PlacementRecord back;
    std::string why;
    REQUIRE(decode_record(encode_record(p), back, why));
    REQUIRE(back == p);
  }
}

TEST_CASE("a record with any one bit changed is refused") {
  const Bytes64 good = encode_record(sample());
  for (std::size_t bit = 0; bit < kRecordBytes * 8; ++bit) {
    Bytes64 bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ (1u << (bit % 8)));
    CAPTURE(bit);
    CHECK_FALSE(refusal(bad).empty());
  }
}

TEST_CASE("what is no record of this version is refused with its cause") {
  Bytes64 bytes = encode_record(sample());
  SECTION("nothing and too little") {
    CHECK(refusal({}) == "the peer's placement record does not begin as one");
    CHECK(refusal(std::span(bytes).first(3)) ==
          "the peer's placement record does not begin as one");
    CHECK(refusal(std::span(bytes).first(63)) ==
          "the peer's placement record has 63 bytes instead of 64");
  }
  SECTION("too much") {
    std::vector<std::uint8_t> longer(bytes.begin(), bytes.end());
    longer.push_back(0);
    CHECK(refusal(longer) == "the peer's placement record has 65 bytes instead of 64");
  }
  SECTION("another version, of any length") {
    bytes[2] = 2;
    CHECK(refusal(bytes) ==
          "the peer's placement record has version 2, this plugin knows 1; use one plugin version "
          "on all hosts");
    CHECK(refusal(std::span(bytes).first(8)).find("version 2") != std::string::npos);
  }
  SECTION("values that no enumerator has") {
    for (const std::size_t at :
         {std::size_t{7}, std::size_t{24}, std::size_t{25}, std::size_t{34}, std::size_t{35}}) {
      Bytes64 bad = bytes;
      bad[at] = 200;
      seal(bad);
      CAPTURE(at);
      CHECK(refusal(bad) ==
            "the peer's placement record names a distance, mode or rule that does not exist");
    }
  }
}

TEST_CASE("a reason of a newer peer is taken as unknown, not as an error") {
  Bytes64 bytes = encode_record(sample());
  for (const std::size_t at : {std::size_t{36}, std::size_t{37}, std::size_t{38}}) bytes[at] = 250;
  seal(bytes);
  PlacementRecord out;
  std::string why;
  REQUIRE(decode_record(bytes, out, why));
  CHECK(out.land.reason == Reason::foreign);
  CHECK(out.source.reason == Reason::foreign);
  CHECK(out.ring_reason == Reason::foreign);
}

TEST_CASE("size limits are powers of two, with never and always at the ends") {
  CHECK(direct_bytes(kNeverDirect) == 0);
  CHECK(direct_bytes(1) == 2);
  CHECK(direct_bytes(16) == 65536);
  CHECK(direct_bytes(62) == std::uint64_t{1} << 62);
  CHECK(direct_bytes(63) == kAnySize);
  CHECK(direct_bytes(kAlwaysDirect) == kAnySize);
}

TEST_CASE("rules have the names of the documented table") {
  CHECK(name_of(Rule::none) == "-");
  CHECK(name_of(Rule::w1) == "W1");
  CHECK(name_of(Rule::w6) == "W6");
  CHECK(name_of(Rule::r1) == "R1");
  CHECK(name_of(Rule::r6) == "R6");
  CHECK(name_of(Rule::i1) == "I1");
  CHECK(name_of(Rule::i7) == "I7");
  CHECK(name_of(Rule::u3) == "U3");
  CHECK(name_of(static_cast<Rule>(99)) == "?");
}

}  // namespace twinpath
