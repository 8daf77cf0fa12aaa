#pragma once
// Clear-to-send cells: how a receiver tells the sender where a message may go.
//
// The sender owns a ring of kCtsCells cells; the receiver writes cell number `seq` into place
// seq % kCtsCells by RDMA.  `gen` is the cell's last field and is the low half of seq + 1, so a
// cell says by itself whether it is the awaited one, and nothing depends on the order in which
// cells or writes arrive.
//
// Why a cell with the right gen is whole.  A cell lies inside one cache line and its bytes go into
// one PCIe write, which becomes visible in address order (PCIe base specification, 2.4.3, for
// memory that was not registered for relaxed ordering); the soft HCA stores small writes word by
// word in that order, with release.  The InfiniBand specification itself leaves the order of bytes
// within a message open (vol. 1, o9-20): every CPU transport that polls memory relies on what
// adapters do.  The reader loads gen with acquire before anything else, so that neither compiler
// nor CPU (arm64) takes the rest from before.
//
// A connection whose receiver has one rail uses 32-byte cells (28 bytes go inline, which with
// its headers is one 64-byte mlx5 WQE); with several rails a cell is 64 bytes, as it carries
// one rkey per rail of the receiver.
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "plugin/base/limits.h"
#include "plugin/base/sync.h"

namespace twinpath {

static_assert(std::endian::native == std::endian::little, "cells are written as they lie");

// Enough for all receives that NCCL may have posted: 32 requests of 8.
inline constexpr std::uint32_t kCtsCells = 256;
static_assert(kCtsCells == kMaxRequests * kMaxRecvs);

// Receive requests of one comm; 6 bits in a cell and in the immediate.
inline constexpr int kRecvSlots = 64;

// The bits that say which receive a cell is of: the receiver's request (slot), which use of it
// (generation), one of how many receives in the irecv (group, sub); whether the receiver does not
// wait, so that a plain write will do (no_completion); whether its CPU may write there, which is so
// of host memory (copyable); how many parcels were read before this cell, modulo 256 (parcels). The
// lowest 17 are what an answer repeats (Immediate below):
//   slot 6 | sub 3 | generation 8 | group-1 3 | no_completion 1 | copyable 1 | parcels 8 | zero 2
inline constexpr std::uint32_t kReceiveBits = 0x1ffff;
inline constexpr std::uint32_t kOneSub = 1u << 6, kSubBits = 7 * kOneSub;
inline constexpr std::uint32_t kGroupBits = 7u << 17, kNoCompletionBit = 1u << 20;
inline constexpr std::uint32_t kCopyableBit = 1u << 21;
struct MetaParts {
  std::uint32_t slot, sub, generation, group;
  bool no_completion, copyable;
};
constexpr std::uint32_t cell_meta(const MetaParts& p, std::uint32_t parcels) {
  return p.slot | p.sub << 6 | p.generation << 9 | (p.group - 1) << 17 |
         (p.no_completion ? 1u << 20 : 0u) | (p.copyable ? kCopyableBit : 0u) |
         (parcels & 0xff) << 22;
}
class CellMeta {
 public:
  explicit constexpr CellMeta(std::uint32_t bits = 0) : bits_(bits) {}
  constexpr std::uint32_t bits() const { return bits_; }
  constexpr std::uint32_t receive() const { return bits_ & kReceiveBits; }
  constexpr std::uint8_t slot() const { return static_cast<std::uint8_t>(bits_ & 63); }
  constexpr std::uint8_t sub() const { return static_cast<std::uint8_t>(bits_ >> 6 & 7); }
  constexpr std::uint8_t generation() const { return static_cast<std::uint8_t>(bits_ >> 9); }
  constexpr std::uint8_t group() const { return static_cast<std::uint8_t>((bits_ >> 17 & 7) + 1); }
  constexpr bool no_completion() const { return (bits_ >> 20 & 1) != 0; }
  constexpr bool copyable() const { return (bits_ >> 21 & 1) != 0; }
  constexpr std::uint8_t parcels() const { return static_cast<std::uint8_t>(bits_ >> 22); }
  // False for bits that no receiver of ours sets.
  constexpr bool valid() const { return bits_ >> 30 == 0 && sub() < group(); }
  // Valid, the first of several, all waiting for a notice and of memory that a CPU may write.
  constexpr bool leads_copied_group() const {
    return (bits_ & (3u << 30 | kCopyableBit | 1u << 20 | 7u << 6)) == kCopyableBit && group() > 1;
  }
  // Valid, a receive by itself, and waiting for a notice.
  constexpr bool lone() const { return (bits_ & (3u << 30 | 15u << 17 | 7u << 6)) == 0; }

 private:
  std::uint32_t bits_;
};

struct NarrowCell {
  std::uint64_t address;
  std::uint32_t bytes;
  std::int32_t tag;
  std::uint32_t meta;
  std::uint32_t rkey;
  std::uint32_t gen;
  std::uint32_t unused;
};
static_assert(sizeof(NarrowCell) == 32 && offsetof(NarrowCell, gen) == 24);

struct WideCell {
  std::uint64_t address;
  std::uint32_t bytes;
  std::int32_t tag;
  std::uint32_t meta;
  std::uint32_t rkeys[kMaxRails];
  std::uint32_t gen;
  std::uint32_t unused[2];
};
static_assert(sizeof(WideCell) == 64 && offsetof(WideCell, gen) == 52);
// Both kinds read alike but for gen: the rkey of the receiver's rail r is word 5 + r.
static_assert(offsetof(NarrowCell, meta) == offsetof(WideCell, meta) &&
              offsetof(NarrowCell, rkey) == offsetof(WideCell, rkeys));

// A cell as it lies in the sender's ring, once it is ready.  Of a receive with completion the
// receiver may write the place again only after it got the answer, so fields may be read until the
// answer is posted; of one without, only until the sender says that it has used the cell.
class CellView {
 public:
  explicit CellView(const std::uint8_t* cell = nullptr) : cell_(cell) {}
  // The same of a copy, for an answer that is posted later.
  CellView copy(std::uint8_t* to, std::size_t stride) const {
    std::memcpy(to, cell_, stride);
    return CellView(to);
  }
  std::uint64_t address() const { return get<std::uint64_t>(offsetof(NarrowCell, address)); }
  std::uint32_t bytes() const { return get<std::uint32_t>(offsetof(NarrowCell, bytes)); }
  std::int32_t tag() const { return get<std::int32_t>(offsetof(NarrowCell, tag)); }
  CellMeta meta() const { return CellMeta(get<std::uint32_t>(offsetof(NarrowCell, meta))); }
  std::uint32_t rkey(int rail) const {
    return get<std::uint32_t>(offsetof(NarrowCell, rkey) +
                              sizeof(std::uint32_t) * static_cast<std::size_t>(rail));
  }

 private:
  template <class T>
  T get(std::size_t at) const {
    T v;
    std::memcpy(&v, cell_ + at, sizeof v);
    return v;
  }
  const std::uint8_t* cell_;
};

constexpr std::uint32_t cts_gen(std::uint64_t seq) { return static_cast<std::uint32_t>(seq + 1); }
constexpr std::uint32_t cts_place(std::uint64_t seq) {
  return static_cast<std::uint32_t>(seq % kCtsCells);
}

// Cell size and layout for a number of receiver rails.
class CtsLayout {
 public:
  explicit constexpr CtsLayout(int receiver_rails = 1)
      : rails_(receiver_rails),
        stride_(receiver_rails > 1 ? sizeof(WideCell) : sizeof(NarrowCell)),
        gen_at_(receiver_rails > 1 ? offsetof(WideCell, gen) : offsetof(NarrowCell, gen)) {}
  constexpr int rails() const { return rails_; }
  constexpr bool wide() const { return rails_ > 1; }
  constexpr std::size_t stride() const { return stride_; }
  // Bytes of `cells` consecutive cells on the wire; the tail of the last one stays home.
  constexpr std::size_t wire_bytes(std::size_t cells) const {
    return stride() * (cells - 1) + gen_offset() + sizeof(std::uint32_t);
  }
  // What is of use in a ready cell, for a copy: behind it the next write may be under way.
  constexpr std::size_t field_bytes() const { return gen_offset(); }
  constexpr std::size_t ring_bytes() const { return stride() * kCtsCells; }
  constexpr std::size_t offset(std::uint64_t seq) const { return stride() * cts_place(seq); }

  // Writes a cell; `bytes` is the capacity of the receive, `rkey(rail)` the key of each rail of the
  // receiver.
  template <class Rkey>
  TP_ALWAYS_INLINE void fill(std::uint8_t* cell, std::uint64_t address, std::uint32_t bytes,
                             std::int32_t tag, std::uint32_t meta, std::uint64_t seq,
                             Rkey&& rkey) const {
    const auto put = [cell](std::size_t at, auto value) {
      std::memcpy(cell + at, &value, sizeof value);
    };
    put(offsetof(NarrowCell, address), address);
    put(offsetof(NarrowCell, bytes), bytes);
    put(offsetof(NarrowCell, tag), tag);
    put(offsetof(NarrowCell, meta), meta);
    put(offsetof(NarrowCell, rkey), rkey(0));
    if (wide()) {
      for (int i = 1; i < kMaxRails; ++i)
        put(offsetof(WideCell, rkeys) + sizeof(std::uint32_t) * static_cast<std::size_t>(i),
            i < rails_ ? rkey(i) : 0u);
      put(offsetof(WideCell, unused), std::uint64_t{0});
    }
    // With the next word, which is 0: all bytes of a cell are written, as all of them travel.
    put(gen_at_, std::uint64_t{cts_gen(seq)});
  }

  // The keys of a cell that is there.
  void set_keys(std::uint8_t* cell, const std::array<std::uint32_t, kMaxRails>& rkeys) const {
    std::memcpy(cell + offsetof(NarrowCell, rkey), rkeys.data(),
                sizeof(std::uint32_t) * static_cast<std::size_t>(rails_));
  }

  // The cell is written again when parcels are counted anew: it says that none has been read.
  static void clear_parcels(std::uint8_t* cell) {
    std::uint32_t meta;
    std::memcpy(&meta, cell + offsetof(NarrowCell, meta), sizeof meta);
    meta &= ~(std::uint32_t{0xff} << 22);
    std::memcpy(cell + offsetof(NarrowCell, meta), &meta, sizeof meta);
  }

  // Pairs with the HCA's write of the cell: everything before gen is visible after a true.
  bool ready(const void* cell, std::uint64_t seq) const {
    // atomic_ref wants something that could be written.
    auto* gen = reinterpret_cast<std::uint32_t*>(
        const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(cell)) + gen_offset());
    return std::atomic_ref<std::uint32_t>(*gen).load(std::memory_order_acquire) == cts_gen(seq);
  }

 private:
  constexpr std::size_t gen_offset() const { return gen_at_; }
  int rails_;
  std::uint32_t stride_;
  std::uint32_t gen_at_;
};

// What a data write tells the receiver in its immediate: which receive it belongs to and how
// many such writes make up the message.  Bit 31 is clear: parcels have it set (parcel.h).
//   slot 6 | sub 3 | generation 8 | chunks-1 5 | in_order 1 | sized 1 | whole_group 1 | zero 7
struct Immediate {
  std::uint8_t slot = 0;
  std::uint8_t sub = 0;
  std::uint8_t generation = 0;
  std::uint8_t chunks = 1;  // 1..32
  bool in_order = false;    // all chunks come front to back on one queue
  bool sized = false;       // the message's size lies in the receive's size record (parcel.h)
  // The notice of all messages of an irecv of several: each filled its buffer, and the others came
  // before this one, on the same queue and without a notice.  Of one chunk.
  bool whole_group = false;
  friend bool operator==(const Immediate&, const Immediate&) = default;
};
static_assert(kMaxQps <= 32);

// Of an answer to a cell whose meta has these receive bits.
constexpr std::uint32_t message_immediate(std::uint32_t receive_bits, std::uint32_t chunks,
                                          bool in_order = false, bool sized = false) {
  return receive_bits | (chunks - 1) << 17 | (in_order ? 1u << 22 : 0u) | (sized ? 1u << 23 : 0u);
}
inline constexpr std::uint32_t kWholeGroupBit = 1u << 24;
constexpr std::uint32_t encode(const Immediate& i) {
  return message_immediate(
             std::uint32_t{i.slot} | std::uint32_t{i.sub} << 6 | std::uint32_t{i.generation} << 9,
             i.chunks, i.in_order, i.sized) |
         (i.whole_group ? kWholeGroupBit : 0u);
}
// False when a bit is set that encode() leaves clear.
constexpr bool decode_immediate(std::uint32_t bits, Immediate& i) {
  i.slot = static_cast<std::uint8_t>(bits & 63);
  i.sub = static_cast<std::uint8_t>((bits >> 6) & 7);
  i.generation = static_cast<std::uint8_t>((bits >> 9) & 255);
  i.chunks = static_cast<std::uint8_t>(((bits >> 17) & 31) + 1);
  i.in_order = ((bits >> 22) & 1) != 0;
  i.sized = ((bits >> 23) & 1) != 0;
  i.whole_group = (bits & kWholeGroupBit) != 0;
  return (bits >> 25) == 0 && (!i.whole_group || (i.chunks == 1 && !i.in_order));
}

}  // namespace twinpath
