#pragma once
// Parcels: several small host messages in one RDMA write, and the other things that a sender writes
// into memory of the receiver's connection: sizes of messages that were cut off from their
// immediate, and how many cells it has used.
//
// A parcel is whole in itself.  It carries, for each message, which receive it answers and how many
// bytes it has; the receiver copies them to where its receives want them.  A copy of 64 bytes costs
// a CPU less than a work request, a completion and a receive, and costs an adapter nothing.
//
//   word 0..n-1   Entry of message i
//   then          the messages' bytes, each at the next multiple of 8
//
// Parcels have numbers.  Number k is written to place k % kParcelPlaces of the receiver's box, and
// may be once the receiver has read number k - kParcelPlaces: each clear-to-send cell says how many
// parcels had been read, without a gap, when it was written.  So neither the order between queues
// nor the speed of either end can make one parcel overwrite another; without room for one, messages
// simply go alone.  The immediate says the number, hence the place.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proxy/wire/cts.h"

namespace twinpath {

// Messages up to this are worth a copy.
inline constexpr std::size_t kParcelBytes = 64;
// Messages of one parcel.
inline constexpr int kParcelMost = 16;
// Parcels that may be on their way, or arrived and not read.
inline constexpr std::uint32_t kParcelPlaces = 4;

struct ParcelEntry {
  std::uint32_t receive = 0;  // the receive bits of the cell that it answers
  std::uint32_t bytes = 0;
};
constexpr std::uint32_t encode(const ParcelEntry& e) { return e.receive | e.bytes << 17; }
// False for bits that no sender of ours sets.
constexpr bool decode_entry(std::uint32_t bits, ParcelEntry& e) {
  e.receive = bits & kReceiveBits;
  e.bytes = bits >> 17;
  return e.bytes <= kParcelBytes;
}
// Where the bytes begin in a parcel of `count` messages; each message's begin at a multiple of 8.
constexpr std::size_t parcel_data_at(std::size_t count) {
  return (count * 4 + 7) & ~std::size_t{7};
}
constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

inline constexpr std::size_t kParcelStride =
    parcel_data_at(kParcelMost) + kParcelMost * kParcelBytes;

// The receiver's box: places of parcels, a word for each receive and its parts, and one for the
// number of cells used.
inline constexpr std::size_t kSizesAt = kParcelStride * kParcelPlaces;
inline constexpr std::size_t kUsedAt =
    kSizesAt + sizeof(std::uint32_t) * static_cast<std::size_t>(kRecvSlots) * kMaxRecvs;
inline constexpr std::size_t kBoxBytes = kUsedAt + sizeof(std::uint64_t);

// A receive without completion tells the receiver nothing, but its cell's place must come free
// again: a sender that has used such a cell writes the low half of "all cells before this one are
// used" at kUsedAt, each time it has gone on by this many.  Always on its first queue, so that the
// number only grows.  A ring full of cells that are all used therefore gets most of them back.
inline constexpr std::uint64_t kUsedPeriod = kCtsCells / 4;
constexpr std::size_t place_offset(std::uint32_t number) {
  return kParcelStride * (number % kParcelPlaces);
}
// Where the size of the message that answers (slot, sub) is written: by whoever may answer that
// cell, before the immediate, on the same queue.
constexpr std::size_t size_offset(int slot, int sub) {
  return kSizesAt + sizeof(std::uint32_t) * static_cast<std::size_t>(slot * kMaxRecvs + sub);
}

// What the immediate of a parcel says: its number modulo 256 and how many messages it has.
struct ParcelImmediate {
  std::uint8_t number = 0;
  std::uint8_t count = 1;
  friend bool operator==(const ParcelImmediate&, const ParcelImmediate&) = default;
};
constexpr std::uint32_t encode(const ParcelImmediate& p) {
  return std::uint32_t{1} << 31 | std::uint32_t{p.count} << 8 | p.number;
}
constexpr bool is_parcel(std::uint32_t bits) { return (bits >> 31) != 0; }
// False for bits that no sender of ours sets.
constexpr bool decode_immediate(std::uint32_t bits, ParcelImmediate& p) {
  p.number = static_cast<std::uint8_t>(bits & 0xff);
  p.count = static_cast<std::uint8_t>(bits >> 8 & 0x1f);
  return (bits >> 13) == 1u << 18 && p.count >= 1 && p.count <= kParcelMost;
}

// Which parcels a receiver has read: all before `frontier`, and of the next kParcelPlaces those
// with their bit set.
class ParcelFrontier {
 public:
  // The parcel with that number (modulo 256) was read; false when it cannot be on its way.
  constexpr bool read(std::uint8_t number) {
    const auto ahead = static_cast<std::uint8_t>(number - frontier_);
    if (ahead >= kParcelPlaces || (read_ >> ahead & 1) != 0) return false;
    read_ = static_cast<std::uint8_t>(read_ | 1u << ahead);
    for (; (read_ & 1) != 0; read_ = static_cast<std::uint8_t>(read_ >> 1)) ++frontier_;
    return true;
  }
  constexpr std::uint8_t frontier() const { return frontier_; }

 private:
  std::uint8_t frontier_ = 0;
  std::uint8_t read_ = 0;
};

// The sender's side of it: how many parcels it may still write.
class ParcelCredit {
 public:
  bool any() const { return static_cast<std::uint8_t>(sent_ - read_) < kParcelPlaces; }
  std::uint8_t take() { return sent_++; }
  // What a cell says.  Cells are looked at in the order of their numbers, so it only grows.  False
  // when it claims parcels that were never sent.
  bool told(std::uint8_t read) {
    if (static_cast<std::uint8_t>(sent_ - read) > kParcelPlaces) return false;
    read_ = read;
    return true;
  }

 private:
  std::uint8_t sent_ = 0;
  std::uint8_t read_ = 0;
};

// Into a parcel that nobody looks at yet: a message of 64 bytes, the longest, in straight moves;
// others by the library.
inline void lay_message(std::uint8_t* to, const void* data, std::uint32_t bytes) {
  if (bytes == kParcelBytes) [[likely]]
    std::memcpy(to, data, kParcelBytes);
  else if (bytes > 0)
    std::memcpy(to, data, bytes);
}

// Copies so that whoever looks at aligned 8-byte words meanwhile sees each of them old or new,
// as an adapter would write them: NCCL's kernels poll flags inside such words.
inline void copy_word(std::uint8_t* to, const std::uint8_t* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(to))
      .store(word, std::memory_order_release);
}
inline void copy_words(void* to, const void* from, std::size_t bytes) {
  auto* t = static_cast<std::uint8_t*>(to);
  const auto* f = static_cast<const std::uint8_t*>(from);
  if (reinterpret_cast<std::uintptr_t>(t) % 8 == 0) {
    if (bytes == kParcelBytes) {  // in straight moves
#pragma GCC unroll 8
      for (std::size_t at = 0; at != kParcelBytes; at += 8) copy_word(t + at, f + at);
      return;
    }
    for (; bytes >= 8; bytes -= 8, t += 8, f += 8) copy_word(t, f);
  }
  if (bytes > 0) std::memcpy(t, f, bytes);
}

}  // namespace twinpath
