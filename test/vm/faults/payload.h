#pragma once
// What a message of the fault cases holds, in 64-bit words: the first one is its number, so that a
// message in the wrong place is told from damaged bytes; behind the last one lies a guard.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace twinpath::test {

inline constexpr std::size_t kGuard = 64;  // bytes after a message that must stay as they were
inline constexpr std::uint64_t kLast = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kGuardWord = 0xA5A5A5A5A5A5A5A5;

constexpr std::uint64_t word_of(std::uint64_t seq, std::size_t i) {
  return (seq + 1) * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u;
}

inline void fill_payload(std::uint64_t* words, std::uint64_t seq, std::size_t size, bool last) {
  words[0] = seq | (last ? kLast : 0);
  for (std::size_t i = 1; i < size / sizeof *words; ++i) words[i] = word_of(seq, i);
}

inline bool is_last(const std::uint64_t* words) { return (words[0] & kLast) != 0; }

// Nothing of this message may pass for the next one.
inline void clear_payload(std::uint64_t* words, std::size_t size) {
  std::fill_n(words, size / sizeof *words, kGuardWord);
}

// What is wrong with a message that came with `bytes`; empty when nothing is.
inline std::string payload_problem(const std::uint64_t* words, std::uint64_t seq, std::size_t size,
                                   std::size_t bytes) {
  const auto wrong = [&](const char* what, std::size_t at, std::uint64_t value) {
    std::array<char, 200> text;
    (void)std::snprintf(text.data(), text.size(),
                        "message %llu of %zu bytes: %s (byte %zu, 0x%llx)",
                        static_cast<unsigned long long>(seq), size, what, at,
                        static_cast<unsigned long long>(value));
    return std::string(text.data());
  };
  if (bytes != size) return wrong("another size was reported", 0, bytes);
  if ((words[0] & ~kLast) != seq) return wrong("another message's number", 0, words[0]);
  for (std::size_t i = 1; i < size / sizeof *words; ++i)
    if (words[i] != word_of(seq, i)) return wrong("wrong data", i * sizeof *words, words[i]);
  for (std::size_t i = size / sizeof *words; i < (size + kGuard) / sizeof *words; ++i)
    if (words[i] != kGuardWord) return wrong("written past the end", i * sizeof *words, words[i]);
  return {};
}

}  // namespace twinpath::test
