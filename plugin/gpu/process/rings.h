#pragma once
// What the program and its copy process share for one GPU: jobs in, results out, and memory through
// which bytes pass between the program's own host memory and that GPU.
//
// Both rings have room for all jobs that may be under way, so neither is ever full.  One writer and
// one reader each; an entry is published by the count behind it (release, acquire).
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/base/sync.h"

namespace twinpath::gpu::process {

inline constexpr std::uint32_t kEntries = 1024;  // power of two: counts wrap

enum class EntryKind : std::uint8_t {
  copy,     // body: from, bytes
  words,    // body: up to four words themselves, for GPU memory; `count` of them
  add,      // body: WordOperation::operand; reads and changes the word at `to`
  compare,  // body: the same
};

struct Entry {
  std::uint64_t to = 0;     // of the copy process; host ends are offsets in the passage
  std::uint64_t order = 0;  // CopyJob::order
  std::array<std::uint64_t, 4> body{};
  std::int16_t to_gpu = -1, from_gpu = -1;  // ordinals there; -1: the passage
  std::uint16_t slot = 0;                   // of the program, comes back with the result
  EntryKind kind = EntryKind::copy;
  std::uint8_t count = 0;
};
static_assert(sizeof(Entry) == 56);

struct Outcome {
  std::uint64_t old = 0;  // add and compare: what the word was before
  std::uint32_t slot = 0;
  std::uint32_t status = 0;  // Status
};

struct Rings {
  alignas(kCacheLine) std::atomic<std::uint32_t> submitted;
  alignas(kCacheLine) std::atomic<std::uint32_t> completed;
  // The copy process sleeps (1) on this word, a futex; who submits clears it and wakes.
  alignas(kCacheLine) std::atomic<std::uint32_t> asleep;
  alignas(kCacheLine) std::array<Entry, kEntries> entries;
  std::array<Outcome, kEntries> outcomes;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// The passage: chunks of pinned memory behind the rings.
inline constexpr std::size_t kChunk = 256 << 10;
inline constexpr std::size_t kChunks = 64;
inline constexpr std::size_t kPassageAt = (sizeof(Rings) + 4095) / 4096 * 4096;
inline constexpr std::size_t kPassageBytes = kChunk * kChunks;
inline constexpr std::size_t kSharedBytes = kPassageAt + kPassageBytes;

// Waits while `word` is 1, and wakes who does: between processes, unlike std::atomic's wait.
void sleep_on(std::atomic<std::uint32_t>& word);
void wake_up(std::atomic<std::uint32_t>& word);

}  // namespace twinpath::gpu::process
