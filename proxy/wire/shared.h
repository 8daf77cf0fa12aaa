#pragma once
// Queue pairs that several connections share: what their bytes say, and which pair a write takes.
// Pure.
//
// The immediate names the member in bits that neither a message's (cts.h) nor a parcel's (parcel.h)
// uses.  A connection by itself leaves them clear, as does member 0.
//   31 parcel | 30..25 member | 24..0 as without sharing
#include <cstddef>
#include <cstdint>

#include "proxy/wire/cts.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

inline constexpr int kMostMembers = 64;
inline constexpr std::uint32_t kMemberShift = 25;
inline constexpr std::uint32_t kMemberBits = std::uint32_t{kMostMembers - 1} << kMemberShift;
static_assert((kMemberBits & (kReceiveBits | kWholeGroupBit)) == 0);
static_assert((kMemberBits & (encode(ParcelImmediate{255, 31}))) == 0);

// Pairs of one set.
inline constexpr int kMostSharedPairs = 16;

constexpr std::uint32_t with_member(std::uint32_t immediate, int member) {
  return immediate | static_cast<std::uint32_t>(member) << kMemberShift;
}
constexpr int member_of(std::uint32_t immediate) {
  return static_cast<int>((immediate & kMemberBits) >> kMemberShift);
}
constexpr std::uint32_t without_member(std::uint32_t immediate) { return immediate & ~kMemberBits; }

// RC delivers in order, so what is long delays what is behind it: with two pairs and more the first
// has cells and whatever is no longer than this.
inline constexpr std::size_t kShortWrite = 8192;

// Of `pairs`, for a member's write of so many bytes.  All chunks of a message that must arrive
// front to back (Immediate::in_order) take one pair, however short the last is.
constexpr int pair_for(int pairs, int member, std::size_t bytes, bool in_order) {
  if (pairs < 2 || (bytes <= kShortWrite && !in_order)) return 0;
  return 1 + member % (pairs - 1);
}

}  // namespace twinpath
