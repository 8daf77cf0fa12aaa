#pragma once
// Placing what an RDMA WRITE brings, so that who watches memory sees it as behind PCIe: small
// writes in address order, and the end of any write last.
//
// Programs watch words that peers write: the proxy's clear-to-send cells (up to 16 of 64 bytes in
// one write, the generation last in each), flags of kernels, the last word of a message.  They load
// that word with acquire and then read what lies before it with plain loads.  So:
//   - a write of up to 1 KiB is stored word by word, each with release.  Whoever sees a word has by
//     that store's release, and the program order of the stores before it, all words before it: the
//     bytes are there, and plain reads of them are no data race.  A word is never seen in halves.
//   - a longer one is copied as it comes, except its last word, which is stored after that with
//     release: who waits for the last word sees all of it.  Nothing is promised for words inside.
// Words are of 8 bytes where the target is aligned so, else of 4.  A release store is a plain one
// on x86-64; on arm64 each is stlr, which 128 words at most can afford.
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
  if ((reinterpret_cast<std::uintptr_t>(to) & 7) == 0) {
    for (; bytes - at >= 8; at += 8) store_word<std::uint64_t>(to + at, from + at);
  }
  for (; bytes - at >= 4; at += 4) store_word<std::uint32_t>(to + at, from + at);
  for (; at != bytes; ++at) store_word<std::uint8_t>(to + at, from + at);
}

inline void write_ordered(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::uint8_t*>(target);
  const auto* from = static_cast<const std::uint8_t*>(source);
  if ((reinterpret_cast<std::uintptr_t>(to) & 3) != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  // What is stored word by word at the end of a long write begins at a multiple of 8.
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(to) + bytes;
  const std::size_t tail = bytes <= kOrderedWrite ? bytes : (end & 7) + 8;
  std::memcpy(to, from, bytes - tail);
  store_words(to + (bytes - tail), from + (bytes - tail), tail);
}

}  // namespace twinpath::soft
