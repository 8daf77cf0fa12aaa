#pragma once
// The one writer and reader of bit fields in an adapter's commands: dwords of big-endian bytes, and
// bits counted from 31 (the dword's highest) to 0, as the adapter's reference manual draws them.
//
// Kept apart from the software HCA's model, which counts bits without dwords and has its tables for
// itself: a slip here must show there.
//
// Threads: any; nothing is shared.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace twinpath::gda::mlx5 {

// Bits [high:low] of the dword at `byte`.
struct Bits {
  std::uint16_t byte;
  std::uint8_t high, low;

  constexpr std::uint32_t mask() const {
    return (high - low == 31 ? ~0u : (1u << (high - low + 1)) - 1) << low;
  }
};
constexpr Bits dword(std::uint16_t byte) { return {byte, 31, 0}; }

// A structure inside a command: its fields are told from its own beginning.
struct Part {
  std::uint16_t byte = 0;
  constexpr Bits operator[](Bits bits) const {
    return {static_cast<std::uint16_t>(byte + bits.byte), bits.high, bits.low};
  }
  constexpr std::uint16_t at(std::uint16_t inner) const {
    return static_cast<std::uint16_t>(byte + inner);
  }
};

// What lies behind the end reads as 0: an answer may be shorter than asked for.
constexpr std::uint32_t read_bits(std::span<const std::uint8_t> bytes, Bits bits) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i)
    word = word << 8 | (bits.byte + i < bytes.size() ? bytes[bits.byte + i] : 0u);
  return (word & bits.mask()) >> bits.low;
}

// A command that is being written, all zero at first.  A field must lie inside; a value is cut to
// its field, so what may be too large is checked before.
class Command {
 public:
  explicit Command(std::size_t bytes) : bytes_(bytes) {}

  Command& put(Bits bits, std::uint32_t value) {
    const std::uint32_t word =
        (read_bits(bytes_, dword(bits.byte)) & ~bits.mask()) | ((value << bits.low) & bits.mask());
    for (std::size_t i = 0; i < 4; ++i)
      bytes_[bits.byte + i] = static_cast<std::uint8_t>(word >> (24 - 8 * i));
    return *this;
  }
  Command& put64(std::uint16_t byte, std::uint64_t value) {
    put(dword(byte), static_cast<std::uint32_t>(value >> 32));
    return put(dword(static_cast<std::uint16_t>(byte + 4)), static_cast<std::uint32_t>(value));
  }
  Command& put_bytes(std::uint16_t byte, std::span<const std::uint8_t> from) {
    for (std::size_t i = 0; i < from.size(); ++i) bytes_[byte + i] = from[i];
    return *this;
  }

  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace twinpath::gda::mlx5
