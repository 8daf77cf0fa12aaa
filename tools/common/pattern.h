#pragma once
// Payload patterns: every 8-byte word depends on a seed and its own position, so that lost,
// shifted, stale or mixed-up data shows.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace twinpath::tools {

// Seed of one message; any change of an argument changes every word.
constexpr std::uint64_t pattern_seed(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xd1342543de82ef95u + c + 0x2545f4914f6cdd1du;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr std::uint64_t pattern_word(std::uint64_t seed, std::size_t index) {
  return seed + index * 0x9e3779b97f4a7c15u;
}

inline void fill_pattern(void* data, std::size_t bytes, std::uint64_t seed) {
  auto* out = static_cast<std::uint8_t*>(data);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = pattern_word(seed, i / 8);
    std::memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
  }
}

// Offset of the first wrong byte at or behind `from` (a multiple of 8), if any.
inline std::optional<std::size_t> find_mismatch(const void* data, std::size_t bytes,
                                                std::uint64_t seed, std::size_t from = 0) {
  const auto* in = static_cast<const std::uint8_t*>(data);
  for (std::size_t i = from; i < bytes; i += 8) {
    const std::uint64_t word = pattern_word(seed, i / 8);
    const std::size_t n = bytes - i < 8 ? bytes - i : 8;
    if (std::memcmp(in + i, &word, n) == 0) continue;
    const auto* want = reinterpret_cast<const std::uint8_t*>(&word);
    for (std::size_t k = 0; k < n; ++k)
      if (in[i + k] != want[k]) return i + k;
  }
  return std::nullopt;
}

}  // namespace twinpath::tools
