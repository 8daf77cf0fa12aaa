#pragma once
// Clear-to-send cells: how a receiver tells the sender where a message may go.
//
// The sender owns a ring of kCtsCells cells; the receiver writes cell number `seq` into place
// seq % kCtsCells by RDMA.  `gen` is the cell's last field and is the low half of seq + 1, so a
// cell says by itself whether it is the awaited one: a cell lies inside one cache line, an HCA
// writes a line front to back, and the reader loads gen with acquire before anything else.
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

namespace twinpath {

static_assert(std::endian::native == std::endian::little, "cells are written as they lie");

// Enough for all receives that NCCL may have posted: 32 requests of 8.
inline constexpr std::uint32_t kCtsCells = 256;
static_assert(kCtsCells == kMaxRequests * kMaxRecvs);

// Receive requests of one comm; 6 bits in a cell and in the immediate.
inline constexpr int kRecvSlots = 64;

// One cell, decoded.
struct Cts {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;  // capacity of the receive
  std::int32_t tag = 0;
  std::uint8_t group = 1;       // receives in the irecv this one belongs to, 1..kMaxRecvs
  std::uint8_t sub = 0;         // its place among them
  std::uint8_t slot = 0;        // the receiver's request
  std::uint8_t generation = 0;  // and which use of that slot
  bool no_completion = false;   // the receiver does not wait: a plain write will do
  bool copyable = false;        // the receiver's CPU may write there: host memory
  std::array<std::uint32_t, kMaxRails> rkeys{};  // by rail of the receiver
  friend bool operator==(const Cts&, const Cts&) = default;
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

constexpr std::uint32_t cts_gen(std::uint64_t seq) { return static_cast<std::uint32_t>(seq + 1); }
constexpr std::uint32_t cts_place(std::uint64_t seq) {
  return static_cast<std::uint32_t>(seq % kCtsCells);
}

// Cell size and codec for a number of receiver rails.
class CtsLayout {
 public:
  explicit constexpr CtsLayout(int receiver_rails = 1) : rails_(receiver_rails) {}
  constexpr int rails() const { return rails_; }
  constexpr bool wide() const { return rails_ > 1; }
  constexpr std::size_t stride() const { return wide() ? sizeof(WideCell) : sizeof(NarrowCell); }
  // Bytes of `cells` consecutive cells on the wire; the tail of the last one stays home.
  constexpr std::size_t wire_bytes(std::size_t cells) const {
    return stride() * (cells - 1) + gen_offset() + sizeof(std::uint32_t);
  }
  constexpr std::size_t ring_bytes() const { return stride() * kCtsCells; }
  constexpr std::size_t offset(std::uint64_t seq) const { return stride() * cts_place(seq); }

  void write(void* cell, const Cts& cts, std::uint64_t seq) const {
    const std::uint32_t meta = pack(cts);
    if (wide()) {
      WideCell c{cts.address, cts.bytes, cts.tag, meta, {}, cts_gen(seq), {}};
      for (std::size_t i = 0; i < cts.rkeys.size(); ++i) c.rkeys[i] = cts.rkeys[i];
      std::memcpy(cell, &c, sizeof c);
    } else {
      const NarrowCell c{cts.address, cts.bytes, cts.tag, meta, cts.rkeys[0], cts_gen(seq), 0};
      std::memcpy(cell, &c, sizeof c);
    }
  }

  // Pairs with the HCA's write of the cell: everything before gen is visible after a true.
  bool ready(void* cell, std::uint64_t seq) const {
    auto* gen = reinterpret_cast<std::uint32_t*>(static_cast<std::uint8_t*>(cell) + gen_offset());
    return std::atomic_ref<std::uint32_t>(*gen).load(std::memory_order_acquire) == cts_gen(seq);
  }

  // The number of the cell that lies there, as cts_gen gives it.
  std::uint32_t gen(const void* cell) const {
    std::uint32_t g;
    std::memcpy(&g, static_cast<const std::uint8_t*>(cell) + gen_offset(), sizeof g);
    return g;
  }

  // The tag alone, for the search of a ready cell.
  static std::int32_t tag(const void* cell) {
    std::int32_t t;
    std::memcpy(&t, static_cast<const std::uint8_t*>(cell) + offsetof(NarrowCell, tag), sizeof t);
    return t;
  }

  // False for a cell that no receiver of ours writes.
  bool read(const void* cell, Cts& cts) const {
    std::uint32_t meta;
    if (wide()) {
      WideCell c;
      std::memcpy(&c, cell, sizeof c);
      cts.address = c.address, cts.bytes = c.bytes, cts.tag = c.tag, meta = c.meta;
      for (std::size_t i = 0; i < cts.rkeys.size(); ++i) cts.rkeys[i] = c.rkeys[i];
    } else {
      NarrowCell c;
      std::memcpy(&c, cell, sizeof c);
      cts.address = c.address, cts.bytes = c.bytes, cts.tag = c.tag, meta = c.meta;
      cts.rkeys = {};
      cts.rkeys[0] = c.rkey;
    }
    return unpack(meta, cts);
  }

 private:
  constexpr std::size_t gen_offset() const {
    return wide() ? offsetof(WideCell, gen) : offsetof(NarrowCell, gen);
  }
  // group-1 (3) | sub (3) | slot (6) | generation (8) | no_completion (1) | copyable (1) | zero
  // (10)
  static std::uint32_t pack(const Cts& c) {
    return (std::uint32_t{c.group} - 1) | std::uint32_t{c.sub} << 3 | std::uint32_t{c.slot} << 6 |
           std::uint32_t{c.generation} << 12 | (c.no_completion ? 1u << 20 : 0u) |
           (c.copyable ? 1u << 21 : 0u);
  }
  static bool unpack(std::uint32_t meta, Cts& c) {
    c.group = static_cast<std::uint8_t>((meta & 7) + 1);
    c.sub = static_cast<std::uint8_t>((meta >> 3) & 7);
    c.slot = static_cast<std::uint8_t>((meta >> 6) & 63);
    c.generation = static_cast<std::uint8_t>((meta >> 12) & 255);
    c.no_completion = ((meta >> 20) & 1) != 0;
    c.copyable = ((meta >> 21) & 1) != 0;
    return (meta >> 22) == 0 && c.sub < c.group;
  }
  int rails_;
};

// What a data write tells the receiver in its immediate: which receive it belongs to and how
// many such writes make up the message.
struct Immediate {
  std::uint8_t slot = 0;        // 6 bits
  std::uint8_t sub = 0;         // 3 bits
  std::uint8_t generation = 0;  // 8 bits
  std::uint8_t chunks = 1;      // 1..32, 5 bits
  bool in_order = false;        // all chunks come front to back on one queue
  friend bool operator==(const Immediate&, const Immediate&) = default;
};
static_assert(kMaxQps <= 32);

constexpr std::uint32_t encode(const Immediate& i) {
  return std::uint32_t{i.slot} | std::uint32_t{i.sub} << 6 | std::uint32_t{i.generation} << 9 |
         (std::uint32_t{i.chunks} - 1) << 17 | (i.in_order ? 1u << 22 : 0u);
}
// False when a bit is set that encode() leaves clear.
constexpr bool decode_immediate(std::uint32_t bits, Immediate& i) {
  i.slot = static_cast<std::uint8_t>(bits & 63);
  i.sub = static_cast<std::uint8_t>((bits >> 6) & 7);
  i.generation = static_cast<std::uint8_t>((bits >> 9) & 255);
  i.chunks = static_cast<std::uint8_t>(((bits >> 17) & 31) + 1);
  i.in_order = ((bits >> 22) & 1) != 0;
  return (bits >> 23) == 0;
}

}  // namespace twinpath
