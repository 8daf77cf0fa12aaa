#pragma once
// What a completion of a context's queue pairs is of: its wr_id has the pair in the upper 16 bits,
// below them the index of a kernel's work request, modulo 2^48, or one of the numbers here.  These
// are the last ones, to which no kernel comes.
//
// Threads: any.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace twinpath::gda {

struct WorkRequestId {
  static constexpr std::uint64_t kNumber = 0xffffffffffff;    // all bits of one
  static constexpr std::uint64_t kReceive = kNumber;          // for a signal
  static constexpr std::uint64_t kLastReceive = kNumber - 1;  // of a queue pair in error
  static constexpr std::uint64_t kLastSend = kNumber - 2;     // the same
  static constexpr std::uint64_t kProbe = kNumber - 3;        // whether the peer's adapter lives
  static constexpr std::uint64_t kQuestion = kNumber - 4;     // whether another port reaches it
  static constexpr std::uint64_t kTaken = kNumber - 5;        // a word to who moves there, too
  static constexpr std::uint64_t kWord = kNumber - 6;         // an offer of a queue pair made anew

  // Receives that have memory of their own, each with the number of its slot.
  static constexpr std::uint64_t kSlots = kNumber - 0xff, kMostSlots = 0x80;

  static constexpr std::uint64_t of(std::size_t pair, std::uint64_t number) {
    return std::uint64_t{pair} << 48 | (number & kNumber);
  }
  static std::size_t pair(const ibv_wc& wc) { return wc.wr_id >> 48; }
  static std::uint64_t number(std::uint64_t wr_id) { return wr_id & kNumber; }
  static bool is(const ibv_wc& wc, std::uint64_t what) { return number(wc.wr_id) == what; }
  static std::uint64_t slot(const ibv_wc& wc) { return number(wc.wr_id) - kSlots; }
  static bool is_receive(const ibv_wc& wc) { return is(wc, kReceive) || slot(wc) < kMostSlots; }
};

}  // namespace twinpath::gda
