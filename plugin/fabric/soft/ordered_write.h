#pragma once
// Placing what an RDMA WRITE brings, so that who watches memory sees it as behind PCIe: small
// writes in address order, and the end of any write last.
//
// Programs watch words that peers write: the proxy's clear-to-send cells (up to 16 of 64 bytes in
// one write, the generation last in each), flags of kernels, the last word of a message.  They load
// that word with acquire and then read what lies before it with plain loads.  So:
//   - a write of up to 1 KiB is stored word by word, each with release.  Whoever sees a word has by
//     that store's release, and the program order of the stores before it, all words before it: the
//     bytes are there, and plain reads of them are no data race.
//   - a longer one is copied as it comes, except its last word, which is stored after that with
//     release: who waits for the last word sees all of it.  Nothing is promised for words inside.
// A release store is a plain one on x86-64; on arm64 each is stlr, which such writes can afford.
//
// Words are of 4 bytes, because the generations are read so: C++ (and the thread sanitizer) knows
// no order between atomic accesses of different sizes to one place.  Who looks at 8 bytes at once,
// as kernels do at a datum and its flag, sees the flag with its datum, which lies before it.  A
// write of just 8 aligned bytes is a counter or a signal, and one word.
//
// The target must be aligned to 4 bytes, as every word is that a program can watch; anything else
// is copied as memcpy does it.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace twinpath::soft {

inline constexpr std::size_t kOrderedWrite = 1024;

// One word; the source may have any alignment and belongs to the writer.
template <class Word>
void store_word(std::uint8_t* to, const std::uint8_t* from) {
  Word v;
  std::memcpy(&v, from, sizeof v);
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(v, std::memory_order_release);
}

// [from, from + bytes) in address order; `to` aligned to 4.
inline void store_words(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  std::size_t at = 0;
  for (; bytes - at >= 32; at += 32) {  // a cell at once
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 32; i += 4) store_word<std::uint32_t>(to + at + i, from + at + i);
  }
  for (; bytes - at >= 4; at += 4) store_word<std::uint32_t>(to + at, from + at);
  for (; at != bytes; ++at) store_word<std::uint8_t>(to + at, from + at);
}

// How many bytes at its end a longer write stores last.
inline std::size_t last_words(std::size_t bytes) { return (bytes & 3) + 4; }

inline void write_ordered(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::uint8_t*>(target);
  const auto* from = static_cast<const std::uint8_t*>(source);
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if (bytes == 8 && (address & 7) == 0) {
    store_word<std::uint64_t>(to, from);
  } else if ((address & 3) != 0) {
    std::memcpy(to, from, bytes);
  } else if (bytes <= kOrderedWrite) {
    store_words(to, from, bytes);
  } else {
    const std::size_t tail = last_words(bytes);
    std::memcpy(to, from, bytes - tail);
    store_words(to + (bytes - tail), from + (bytes - tail), tail);
  }
}

// What an RDMA READ brings: a word of 8 aligned bytes whole, as its owner may count there
// meanwhile.
inline void read_ordered(void* target, const void* source, std::size_t bytes) {
  if (bytes != 8 || (reinterpret_cast<std::uintptr_t>(source) & 7) != 0) {
    std::memcpy(target, source, bytes);
    return;
  }
  // GCC 12 has no atomic_ref of what is const.
  auto* const word = const_cast<std::uint64_t*>(static_cast<const std::uint64_t*>(source));
  const std::uint64_t v = std::atomic_ref(*word).load(std::memory_order_acquire);
  std::memcpy(target, &v, sizeof v);
}

}  // namespace twinpath::soft
