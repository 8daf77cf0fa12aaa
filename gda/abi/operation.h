#pragma once
// One work request as the front end hands it to a back end: checked, with the keys and offsets of
// the kernel's WQE replaced by addresses and keys of the fabric.
//
// Threads: plain values.
#include <array>
#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

enum class OperationKind : std::uint8_t {
  nop,           // done when everything before it is
  write,         // local -> remote, `bytes` (0 is allowed)
  write_inline,  // inline_data -> remote
  fetch_add,     // remote 64-bit word += add, host byte order; the old value goes nowhere
  read,          // remote -> local
  dump,          // done when everything before it is visible to the local GPU
};

// A companion queue's WAIT, in counts (counters::kGinOperationNames).
inline constexpr std::size_t kCountedWait = 6;
inline constexpr std::size_t kMaxInline = 28;  // bytes that fit in a WQE of four segments

struct Operation {
  OperationKind kind = OperationKind::nop;
  std::uint32_t bytes = 0;
  std::uint64_t local = 0;   // address here
  std::uint64_t remote = 0;  // address (IOVA) at the peer
  std::uint32_t lkey = 0;    // of the fabric, host byte order
  std::uint32_t rkey = 0;
  std::uint32_t second_lkey = 0, second_rkey = 0;  // over the team's second port
  std::uint64_t add = 0;
  std::uint32_t window = 0;  // of a fetch_add: the word as the kernel named it, by key
  std::uint64_t offset = 0;  // and offset
  std::array<std::uint8_t, kMaxInline> inline_data{};

  bool is_signal() const { return kind == OperationKind::fetch_add; }
  // By port of the team, 0 or 1.
  std::uint32_t lkey_at(int port) const { return port == 0 ? lkey : second_lkey; }
  std::uint32_t rkey_at(int port) const { return port == 0 ? rkey : second_rkey; }
};

// Error syndromes of an error CQE (PRM "Completion with Error syndrome", mlx5dv.h).
enum class Syndrome : std::uint8_t {
  none = 0,
  local_length = 0x01,
  local_qp_operation = 0x02,
  local_protection = 0x04,
  flushed = 0x05,
  bad_response = 0x10,
  local_access = 0x11,
  remote_invalid_request = 0x12,
  remote_access = 0x13,
  remote_operation = 0x14,
  retry_exceeded = 0x15,
  rnr_exceeded = 0x16,
  aborted = 0x22,
};

// A kernel's own wrong work request, which says nothing of the peer or of the way there.  All else
// does, and so does an error that is not known: kernels go on behind one, and completions of what
// is flushed soon lie over it.
constexpr bool is_own_fault(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::local_length:
    case Syndrome::local_protection:
    case Syndrome::local_qp_operation:
    case Syndrome::remote_access:
    case Syndrome::remote_invalid_request:
    case Syndrome::remote_operation:
      return true;
    default:
      return false;
  }
}

}  // namespace twinpath::gda
