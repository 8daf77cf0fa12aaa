#pragma once
// Parcels: several small host messages in one RDMA write.
//
// Next to its clear-to-send ring a connection has a box of the same number of places: place p of
// the receiver's box takes the message that answers cell p.  The sender lays the messages into
// its own box and writes a run of neighbouring places with one immediate; the receiver copies
// each message to where its receive wants it.  A copy of 64 bytes costs a CPU less than a work
// request, a completion and a receive, and costs an adapter nothing.
//
// A place is free when its cell is, so there is nothing more to keep count of.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proxy/wire/cts.h"

namespace twinpath {

// Messages up to this are worth a copy.
inline constexpr int kParcelBytes = 64;
// Places that one parcel may span.
inline constexpr int kParcelSpan = 16;

struct ParcelPlace {
  std::uint32_t bytes;
  std::uint32_t gen;  // of the cell that it answers (cts_gen)
  std::uint8_t data[kParcelBytes];
};
static_assert(sizeof(ParcelPlace) == 72);
inline constexpr std::size_t kParcelBoxBytes = sizeof(ParcelPlace) * kCtsCells;

// What the immediate of a parcel says: bit 31, which the immediate of a message has clear.
struct ParcelImmediate {
  std::uint8_t first = 0;     // place
  std::uint16_t present = 0;  // bit i: place first + i holds a message
  friend bool operator==(const ParcelImmediate&, const ParcelImmediate&) = default;
};
static_assert(kCtsCells == 256 && kParcelSpan == 16);

constexpr std::uint32_t encode(const ParcelImmediate& p) {
  return std::uint32_t{1} << 31 | std::uint32_t{p.present} << 8 | p.first;
}
constexpr bool is_parcel(std::uint32_t bits) { return (bits >> 31) != 0; }
// False for bits that no sender of ours sets.
constexpr bool decode_immediate(std::uint32_t bits, ParcelImmediate& p) {
  p.first = static_cast<std::uint8_t>(bits & 0xff);
  p.present = static_cast<std::uint16_t>(bits >> 8 & 0xffff);
  return (bits >> 24) == 0x80 && (p.present & 1) != 0;
}

inline ParcelPlace* parcel_place(std::uint8_t* box, std::uint32_t place) {
  return reinterpret_cast<ParcelPlace*>(box) + place;
}

// Copies so that whoever looks at aligned 8-byte words meanwhile sees each of them old or new,
// as an adapter would write them: NCCL's kernels poll flags inside such words.
inline void copy_words(void* to, const void* from, std::size_t bytes) {
  auto* t = static_cast<std::uint8_t*>(to);
  const auto* f = static_cast<const std::uint8_t*>(from);
  if (reinterpret_cast<std::uintptr_t>(t) % 8 == 0) {
    for (; bytes >= 8; bytes -= 8, t += 8, f += 8) {
      std::uint64_t word;
      std::memcpy(&word, f, sizeof word);
      std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(t))
          .store(word, std::memory_order_release);
    }
  }
  if (bytes > 0) std::memcpy(t, f, bytes);
}

}  // namespace twinpath
