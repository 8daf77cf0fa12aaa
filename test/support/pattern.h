#pragma once
// Long runs of known bytes, filled and compared by memcpy and memcmp: one byte after the other,
// without optimization and under a sanitizer, they were most of what tests of data took.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace twinpath::test {

// Begins with the byte `first`.  Pieces that changed places, or are of another pattern, differ,
// but for some that are 65,280 bytes apart.
class KnownBytes {
 public:
  explicit KnownBytes(std::size_t first) : first_(first) {}
  std::uint8_t operator[](std::size_t i) const {
    return static_cast<std::uint8_t>(first_ + i * 7 + (i >> 8) + (i >> 16));
  }
  void fill(std::uint8_t* to, std::size_t bytes) const {
    for (std::size_t at = 0; at < bytes; at += kPiece)
      std::memcpy(to + at, piece(at), std::min(kPiece, bytes - at));
  }
  // Where these bytes differ from it first; `bytes` where they nowhere do.
  std::size_t differs_at(const std::uint8_t* data, std::size_t bytes) const {
    for (std::size_t at = 0; at < bytes; at += kPiece) {
      const std::uint8_t* const want = piece(at);
      const std::size_t n = std::min(kPiece, bytes - at);
      if (std::memcmp(data + at, want, n) != 0)
        return at + static_cast<std::size_t>(std::mismatch(want, want + n, data + at).first - want);
    }
    return bytes;
  }

 private:
  static constexpr std::size_t kPiece = 256;
  using Steps = std::array<std::uint8_t, 2 * kPiece>;
  // Steps of 7 meet each value of a byte once in 256: a piece that begins with any of them is in
  // here.
  static constexpr Steps kSteps = [] {
    Steps steps{};
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<std::uint8_t>(i * 7);
    return steps;
  }();
  // `at` is a multiple of kPiece, whose steps come to nothing; 7 * 183 is 1 modulo 256.
  const std::uint8_t* piece(std::size_t at) const {
    return kSteps.data() + (first_ + (at >> 8) + (at >> 16)) * 183 % kPiece;
  }
  std::size_t first_;
};

// What one rank sends to another.
inline KnownBytes sent_bytes(int from, int to, unsigned round) {
  return KnownBytes(static_cast<unsigned>(from) * 89 + static_cast<unsigned>(to) * 7 + round * 3 +
                    1);
}

// Where the first byte that is not `value` is; `bytes` where all are.
inline std::size_t other_than(std::uint8_t value, const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0 || (data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0)) return bytes;
  return static_cast<std::size_t>(
      std::find_if(data, data + bytes, [&](std::uint8_t b) { return b != value; }) - data);
}

}  // namespace twinpath::test
