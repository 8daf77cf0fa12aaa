#pragma once
// Bytes that a kernel writes for one work request: a 64-byte WQE in the format of mlx5 (PRM "Send
// WQE"), and the doorbell that tells of it.  Written once, for kernels, for the CPU thread that
// plays a kernel, and for the decoder's tests.
//
// A WQE is kept as eight words in memory order; keys are given big-endian, as device tables hold
// them.  Bytes that NCCL leaves uninitialised are zero here and read by nobody.
#include <array>
#include <cstddef>
#include <cstdint>

#include "gda/abi/host_device.h"

namespace twinpath::gda {

inline constexpr std::size_t kWqeBytes = 64;
inline constexpr std::size_t kWqeWords = kWqeBytes / 8;
inline constexpr std::uint32_t kMinDepth = 16;
inline constexpr std::uint32_t kMaxDepth = 32768;  // a WQE's number has 16 bits, and a sign is used

enum class Opcode : std::uint8_t {
  nop = 0x00,
  write = 0x08,
  wait = 0x0f,
  read = 0x10,
  fetch_add = 0x12,
  dump = 0x23,
};

inline constexpr std::uint32_t kInlineFlag = 0x80000000u;  // in a byte count: data follows
inline constexpr std::uint8_t kAlwaysComplete = 0x08;      // fm_ce_se: a CQE whatever happens
inline constexpr std::uint32_t kInlineThreeSegments = 12;  // inline bytes that fit in 3 segments

using WqeWords = std::array<std::uint64_t, kWqeWords>;

struct Wqe {
  WqeWords words{};
  std::uint32_t segments = 0;  // of 16 bytes; what lies behind is not written to the queue
  // Inline data does not end with a segment: first byte that is not written (0: whole segments).
  std::uint32_t end = 0;
};

// Two dwords of host order, big-endian each, as one word in memory order.
TWINPATH_HD constexpr std::uint64_t dwords(std::uint32_t first, std::uint32_t second) {
  return swap32(first) | std::uint64_t{swap32(second)} << 32;
}
TWINPATH_HD constexpr std::uint32_t first_dword(std::uint64_t word) {
  return swap32(static_cast<std::uint32_t>(word));
}
TWINPATH_HD constexpr std::uint32_t second_dword(std::uint64_t word) {
  return swap32(static_cast<std::uint32_t>(word >> 32));
}
// A big-endian byte count with a key that is big-endian already.
TWINPATH_HD constexpr std::uint64_t count_and_key(std::uint32_t count, std::uint32_t key_be) {
  return swap32(count) | std::uint64_t{key_be} << 32;
}

TWINPATH_HD constexpr Wqe control(Opcode opcode, std::uint64_t index, std::uint32_t qpn,
                                  std::uint32_t segments) {
  Wqe wqe;
  wqe.words[0] =
      dwords(static_cast<std::uint32_t>(index & 0xffff) << 8 | static_cast<std::uint32_t>(opcode),
             qpn << 8 | segments);
  wqe.words[1] = std::uint64_t{kAlwaysComplete} << 24;  // byte 11
  wqe.segments = segments;
  return wqe;
}

TWINPATH_HD constexpr Wqe make_nop(std::uint64_t index, std::uint32_t qpn) {
  return control(Opcode::nop, index, qpn, 1);
}

// WRITE or READ of one piece of memory.
TWINPATH_HD constexpr Wqe make_transfer(Opcode opcode, std::uint64_t index, std::uint32_t qpn,
                                        std::uint64_t remote, std::uint32_t rkey_be,
                                        std::uint64_t local, std::uint32_t lkey_be,
                                        std::uint32_t bytes) {
  Wqe wqe = control(opcode, index, qpn, 3);
  wqe.words[2] = swap64(remote);
  wqe.words[3] = rkey_be;
  wqe.words[4] = count_and_key(bytes & ~kInlineFlag, lkey_be);
  wqe.words[5] = swap64(local);
  return wqe;
}
TWINPATH_HD constexpr Wqe make_write(std::uint64_t index, std::uint32_t qpn, std::uint64_t remote,
                                     std::uint32_t rkey_be, std::uint64_t local,
                                     std::uint32_t lkey_be, std::uint32_t bytes) {
  return make_transfer(Opcode::write, index, qpn, remote, rkey_be, local, lkey_be, bytes);
}
TWINPATH_HD constexpr Wqe make_read(std::uint64_t index, std::uint32_t qpn, std::uint64_t remote,
                                    std::uint32_t rkey_be, std::uint64_t local,
                                    std::uint32_t lkey_be, std::uint32_t bytes) {
  return make_transfer(Opcode::read, index, qpn, remote, rkey_be, local, lkey_be, bytes);
}

// At most 28 bytes; the data starts four bytes into the third segment.
TWINPATH_HD constexpr Wqe make_write_inline(std::uint64_t index, std::uint32_t qpn,
                                            std::uint64_t remote, std::uint32_t rkey_be,
                                            const std::uint8_t* data, std::uint32_t bytes) {
  Wqe wqe = control(Opcode::write, index, qpn, bytes > kInlineThreeSegments ? 4 : 3);
  wqe.words[2] = swap64(remote);
  wqe.words[3] = rkey_be;
  wqe.words[4] = swap32(bytes | kInlineFlag);
  for (std::uint32_t i = 0; i < bytes; ++i)
    wqe.words[(36 + i) / 8] |= std::uint64_t{data[i]} << (36 + i) % 8 * 8;
  wqe.end = 36 + bytes;
  return wqe;
}

// The old value goes to the first 8 bytes of the sink; nobody reads it.
TWINPATH_HD constexpr Wqe make_fetch_add(std::uint64_t index, std::uint32_t qpn,
                                         std::uint64_t remote, std::uint32_t rkey_be,
                                         std::uint64_t add, std::uint32_t sink_lkey_be) {
  Wqe wqe = control(Opcode::fetch_add, index, qpn, 4);
  wqe.words[2] = swap64(remote);
  wqe.words[3] = rkey_be;
  wqe.words[4] = swap64(add);
  wqe.words[5] = swap64(add);
  wqe.words[6] = count_and_key(8, sink_lkey_be);
  return wqe;
}

// Done when the CQ `cqn` has its CQE number `awaited` (modulo 2^32).
TWINPATH_HD constexpr Wqe make_wait(std::uint64_t index, std::uint32_t qpn, std::uint64_t awaited,
                                    std::uint32_t cqn) {
  Wqe wqe = control(Opcode::wait, index, qpn, 2);
  wqe.words[3] = dwords(static_cast<std::uint32_t>(awaited), cqn);
  return wqe;
}

TWINPATH_HD constexpr Wqe make_dump(std::uint64_t index, std::uint32_t qpn,
                                    std::uint32_t sink_lkey_be) {
  Wqe wqe = control(Opcode::dump, index, qpn, 2);
  wqe.words[2] = count_and_key(1, sink_lkey_be);
  return wqe;
}

// Doorbells.  `count`: number of WQEs written so far.

// What an adapter's register takes; 24 bits of the count survive.
TWINPATH_HD constexpr std::uint64_t adapter_doorbell(std::uint64_t count, std::uint32_t qpn) {
  return dwords(static_cast<std::uint32_t>(count << 8), qpn << 8);
}
TWINPATH_HD constexpr std::uint32_t adapter_doorbell_qpn(std::uint64_t word) {
  return second_dword(word) >> 8;
}
// How far the count that the register's value stands for is ahead of `last`: -2^23 to 2^23 - 1.
TWINPATH_HD constexpr std::int32_t adapter_doorbell_ahead(std::uint64_t word, std::uint64_t last) {
  const std::uint32_t low = first_dword(word) >> 8;
  return static_cast<std::int32_t>((low - static_cast<std::uint32_t>(last)) << 8) >> 8;
}
// Doorbell record, as it lies in memory.
TWINPATH_HD constexpr std::uint32_t doorbell_record(std::uint64_t count) {
  return swap32(static_cast<std::uint32_t>(count & 0xffff));
}

}  // namespace twinpath::gda
