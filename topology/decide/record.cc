// Encoding of the placement record.
#include "topology/decide/record.h"

#include <algorithm>

#include "plugin/base/wire.h"

namespace twinpath {
namespace {

constexpr std::size_t kCrcAt = kRecordBytes - 4;

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kCrcTable = crc_table();

template <class T>
void put(std::array<std::uint8_t, kRecordBytes>& out, std::size_t& at, T value) {
  const auto v = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[at++] = static_cast<std::uint8_t>((v >> (8 * i)) & 0xff);
}

// An enumerator of `count`; false when the byte is none.
template <class E>
bool read_enum(Reader& r, int count, E& out) {
  const int v = r.integer<std::uint8_t>();
  if (v >= count) return false;
  out = static_cast<E>(v);
  return true;
}

// A newer peer of this version may know more reasons than we do.
Reason read_reason(Reader& r) {
  return static_cast<Reason>(std::min<int>(r.integer<std::uint8_t>(), kReasons - 1));
}

}  // namespace

std::string_view name_of(Rule rule) {
  static constexpr std::array<std::string_view, kRules> kNames{
      "-",  "W1", "W2", "W3", "W4", "W5", "W6", "R1", "R2", "R3", "R4", "R5",
      "R6", "I1", "I2", "I3", "I4", "I5", "I6", "I7", "U1", "U2", "U3"};
  const auto i = static_cast<std::size_t>(rule);
  return i < kNames.size() ? kNames[i] : "?";
}

std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
  std::uint32_t c = ~seed;
  for (const std::uint8_t b : bytes) c = kCrcTable[(c ^ b) & 0xff] ^ (c >> 8);
  return ~c;
}

std::uint64_t hash64(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

std::array<std::uint8_t, kRecordBytes> encode_record(const PlacementRecord& p) {
  std::array<std::uint8_t, kRecordBytes> out{};
  std::size_t at = 0;
  put(out, at, kRecordMagic);
  put(out, at, kRecordVersion);
  put(out, at, static_cast<std::uint8_t>(kRecordBytes));
  put(out, at, p.gpu);
  put(out, at, p.hca);
  put(out, at, p.rail);
  put(out, at, static_cast<std::uint8_t>(p.wish));
  put(out, at, p.host);
  put(out, at, p.topology);
  put(out, at, static_cast<std::uint8_t>(p.distance));
  put(out, at, static_cast<std::uint8_t>(p.pf_distance));
  put(out, at, p.flags);
  put(out, at, p.capabilities);
  put(out, at, p.land.log2);
  put(out, at, p.source.log2);
  put(out, at, static_cast<std::uint8_t>(p.land.rule));
  put(out, at, static_cast<std::uint8_t>(p.source.rule));
  put(out, at, static_cast<std::uint8_t>(p.land.reason));
  put(out, at, static_cast<std::uint8_t>(p.source.reason));
  put(out, at, static_cast<std::uint8_t>(p.ring_reason));
  put(out, at, p.compute_capability);
  put(out, at, p.gdr_error);
  put(out, at, p.ring_error);
  put(out, at, p.port_gbps);
  put(out, at, p.pcie_dgbs);
  put(out, at, p.read_dgbs);
  put(out, at, p.write_dgbs);
  at = kCrcAt;
  put(out, at, crc32(std::span(out).first(kCrcAt)));
  return out;
}

bool decode_record(std::span<const std::uint8_t> bytes, PlacementRecord& record, std::string& why) {
  record = {};
  // Magic and version come first: a later version may be longer.
  Reader r(bytes);
  const auto magic = r.integer<std::uint16_t>();
  const auto version = r.integer<std::uint8_t>();
  const auto length = r.integer<std::uint8_t>();
  if (!r.ok() || magic != kRecordMagic) {
    why = "the peer's placement record does not begin as one";
    return false;
  }
  if (version != kRecordVersion) {
    why = "the peer's placement record has version " + std::to_string(version) +
          ", this plugin knows " + std::to_string(kRecordVersion) +
          "; use one plugin version on all hosts";
    return false;
  }
  if (bytes.size() != kRecordBytes || length != kRecordBytes) {
    why = "the peer's placement record has " + std::to_string(bytes.size()) + " bytes instead of " +
          std::to_string(kRecordBytes);
    return false;
  }
  Reader tail(bytes.subspan(kCrcAt));
  if (tail.integer<std::uint32_t>() != crc32(bytes.first(kCrcAt))) {
    why = "the peer's placement record is damaged: its checksum differs";
    return false;
  }
  PlacementRecord p;
  p.gpu = r.integer<std::uint8_t>();
  p.hca = r.integer<std::uint8_t>();
  p.rail = r.integer<std::uint8_t>();
  bool known = read_enum(r, kModeChoices, p.wish);
  p.host = r.integer<std::uint64_t>();
  p.topology = r.integer<std::uint64_t>();
  known = read_enum(r, kDistances, p.distance) && known;
  known = read_enum(r, kDistances, p.pf_distance) && known;
  p.flags = r.integer<std::uint16_t>();
  p.capabilities = r.integer<std::uint32_t>();
  p.land.log2 = r.integer<std::uint8_t>();
  p.source.log2 = r.integer<std::uint8_t>();
  known = read_enum(r, kRules, p.land.rule) && known;
  known = read_enum(r, kRules, p.source.rule) && known;
  p.land.reason = read_reason(r);
  p.source.reason = read_reason(r);
  p.ring_reason = read_reason(r);
  p.compute_capability = r.integer<std::uint8_t>();
  p.gdr_error = r.integer<std::uint16_t>();
  p.ring_error = r.integer<std::uint16_t>();
  p.port_gbps = r.integer<std::uint16_t>();
  p.pcie_dgbs = r.integer<std::uint16_t>();
  p.read_dgbs = r.integer<std::uint16_t>();
  p.write_dgbs = r.integer<std::uint16_t>();
  if (!known) {
    why = "the peer's placement record names a distance, mode or rule that does not exist";
    return false;
  }
  record = p;
  return true;
}

}  // namespace twinpath
