// See fetch.h.
#include "gda/served/front/fetch.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace twinpath::gda {
namespace {

std::atomic_ref<std::uint64_t> word_at(const std::uint8_t* slot, std::size_t i) {
  // The kernel's stores are 16, 8 or 4 bytes wide; 8 aligned bytes are never torn by PCIe.
  return std::atomic_ref<std::uint64_t>(
      *reinterpret_cast<std::uint64_t*>(const_cast<std::uint8_t*>(slot) + i * 8));
}

bool inline_complete(const WqeWords& words, std::size_t segments, std::uint32_t bytes,
                     std::uint64_t poison) {
  // From the count at byte 32 on, dword by dword, the last one perhaps in part; data that could
  // not fit is refused later.
  const std::size_t end = std::min<std::size_t>(segments * 16, 36 + std::size_t{bytes});
  for (std::size_t at = 32; at < end; at += 4) {
    const unsigned shift = at % 8 * 8;
    if (static_cast<std::uint32_t>(words[at / 8] >> shift) ==
        static_cast<std::uint32_t>(poison >> shift))
      return false;
  }
  return true;
}

}  // namespace

WqeWords copy_wqe(const std::uint8_t* slot) {
  WqeWords words;
  for (std::size_t i = 0; i < kWqeWords; ++i)
    words[i] = word_at(slot, i).load(std::memory_order_relaxed);
  return words;
}

Written look_at(const WqeWords& words, std::uint64_t index, std::uint32_t qpn,
                std::uint64_t poison) {
  const auto unwritten = [&](std::size_t i) { return words[i] == poison; };
  const std::uint32_t first = first_dword(words[0]);
  const std::uint32_t second = second_dword(words[0]);
  if (unwritten(0) || unwritten(1) || (first >> 8 & 0xffff) != (index & 0xffff) ||
      second >> 8 != qpn)
    return Written::no;
  const auto opcode = static_cast<Opcode>(first & 0xff);
  const std::size_t segments = std::min<std::size_t>(second & 0xff, 4);
  std::size_t whole = segments * 2;
  Written out = Written::whole;
  if (opcode == Opcode::write && segments > 2) {
    const std::uint32_t count = first_dword(words[4]);
    if (static_cast<std::uint32_t>(words[4]) == static_cast<std::uint32_t>(poison))
      return Written::no;
    if ((count & kInlineFlag) != 0) {
      if (!inline_complete(words, segments, count & ~kInlineFlag, poison))
        out = Written::but_for_data;
      whole = 4;
    }
  }
  for (std::size_t i = 2; i < whole; ++i) {
    if (!unwritten(i)) continue;
    const bool operand = opcode == Opcode::fetch_add && (i == 4 || i == 5);
    if (!operand) return Written::no;
    out = Written::but_for_data;
  }
  return out;
}

void poison_slot(std::uint8_t* slot, std::uint64_t poison) {
  for (std::size_t i = 0; i < kWqeWords; ++i)
    word_at(slot, i).store(poison, std::memory_order_relaxed);
}

}  // namespace twinpath::gda
