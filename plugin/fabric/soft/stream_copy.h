#pragma once
// memcpy whose stores go past the caches: the lines of the target are not read before they are
// written, which is a third of what large copies ask of memory, and what the caches hold stays.
// Who reads the target soon after finds it in memory only.
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace twinpath::soft {

inline void stream_copy(void* target, const void* source, std::size_t bytes) {
#if defined(__x86_64__)
  auto* to = static_cast<std::uint8_t*>(target);
  const auto* from = static_cast<const std::uint8_t*>(source);
  constexpr std::size_t kLine = 64, kVector = sizeof(__m128i);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) & (kLine - 1);
  if (bytes < head + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; bytes - at >= kLine; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    // The prefetcher of the processor stops at pages' ends.
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + 8 * kLine, _MM_HINT_NTA);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  static_assert(kLine == 4 * kVector);
  std::memcpy(to + at, from + at, bytes - at);
  // Such stores are not ordered with later ones, not even of a release: whoever is told that the
  // bytes are there must find them.
  _mm_sfence();
#else
  std::memcpy(target, source, bytes);
#endif
}

}  // namespace twinpath::soft
