#pragma once
// Bit fields of an mlx5 device's commands.  A command and its answer are bytes; a field is so many
// bits from a bit counted from the top of byte 0, which is how the adapter's reference manual and
// everybody's field tables count.
//
// Threads: any; nothing is kept.  Errors: what lies beyond the end of the bytes reads as 0 and is
// not written, so that a short answer is a truncated one.
#include <cstddef>
#include <cstdint>
#include <span>

namespace twinpath::soft::mlx5 {

struct Field {
  std::uint32_t bit;
  std::uint32_t width;  // 1..64

  // The same field of a structure that begins at byte `byte` of the command.
  constexpr Field at(std::uint32_t byte) const { return {bit + 8 * byte, width}; }
};

constexpr std::uint64_t get(std::span<const std::uint8_t> bytes, Field f) {
  std::uint64_t value = 0;
  for (std::uint32_t i = f.bit; i < f.bit + f.width; ++i) {
    const std::size_t byte = i / 8;
    const unsigned one = byte < bytes.size() ? (bytes[byte] >> (7 - i % 8)) & 1u : 0u;
    value = value << 1 | one;
  }
  return value;
}

constexpr void set(std::span<std::uint8_t> bytes, Field f, std::uint64_t value) {
  for (std::uint32_t i = f.bit; i < f.bit + f.width; ++i) {
    const std::size_t byte = i / 8;
    if (byte >= bytes.size()) return;
    const auto mask = static_cast<std::uint8_t>(0x80u >> (i % 8));
    const bool one = (value >> (f.bit + f.width - 1 - i) & 1) != 0;
    bytes[byte] = static_cast<std::uint8_t>(one ? bytes[byte] | mask : bytes[byte] & ~mask);
  }
}

}  // namespace twinpath::soft::mlx5
