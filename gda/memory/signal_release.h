#pragma once
// The way out for kernels that wait for signals or counters which nobody will raise any more.
// Kernels compare in 64, 56 or 32 bits, round the end (a difference in the upper half means "not
// yet"); a quarter of each range in advance ends all these waits.  What kernels then compute is
// garbage; the communicator has reported its error by then.
//
// Kernels that go on may set a word back, or read it and wait for a little more: so this is
// repeated, about every millisecond, and words that are in advance advance further.  In 32 bits
// that reaches the upper half after a second, and leaves it a second later.
//
// Threads: any; words are added to atomically, because adapters and peers may still add.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

inline constexpr std::uint64_t kReleaseAdd =
    std::uint64_t{1} << 62 | std::uint64_t{1} << 54 | std::uint64_t{1} << 30;

inline constexpr std::uint64_t kReleaseStep = std::uint64_t{1} << 20;

// How long to pause after a round that took so long: a millisecond, but tables may be large, and an
// eighth of the time at most goes to letting their waiters go.
constexpr std::int64_t release_pause(std::int64_t took_ns) {
  constexpr std::int64_t kEvery = 1'000'000, kShare = 8;
  return std::max(kEvery, kShare * took_ns);
}

// One round over all words.
inline void release_waiters(std::uint64_t* words, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::atomic_ref<std::uint64_t> word(words[i]);
    const bool first = word.load(std::memory_order_relaxed) < std::uint64_t{1} << 62;
    word.fetch_add(first ? kReleaseAdd : kReleaseStep, std::memory_order_release);
  }
}

}  // namespace twinpath::gda
