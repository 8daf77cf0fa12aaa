#pragma once
// What kind of copy a job needs, and how bytes are cut into rows.  Pure functions.
#include <cstddef>
#include <cstdint>

#include "plugin/gpu/engine.h"

namespace twinpath::gpu {

// What a job needs.
enum class CopyKind { copy, tiny, staged, nothing };

inline constexpr std::uint64_t kTinyBytes = 32;
// Beside kernels of another process a tiny job of up to so many words is values, else rows.  2
// H200: values 1.3 us each behind the first 4 us, a job of rows 7.5 us and 2.5 us each further one.
inline constexpr std::size_t kValueWords = 2;

CopyKind classify(const CopyJob& job);

// How to copy so many bytes, at least two, as rows of equal length: `head` bytes in two rows, then
// `tail` bytes in three.  A multiple of 8 above 8 is not cut within a word of 8 bytes, one of 4
// above 4 not within one of 4: who waits for small pieces watches their words.
struct RowPlan {
  std::uint64_t head = 0, tail = 0;
};
RowPlan plan_rows(std::uint64_t bytes);
inline constexpr std::uint64_t kRowsBelow = 32ull << 10;

}  // namespace twinpath::gpu
