#pragma once
// A guest's memory for tests, and commands in it as a driver writes them.
#include <cstring>
#include <vector>

#include "tools/softhca/pci/guest_memory.h"
#include "tools/softhca/pci/messages.h"

namespace twinpath::softhca::pci::test {

using soft::mlx5::Field;
using soft::mlx5::get;
using soft::mlx5::set;

struct Guest {
  static constexpr std::uint64_t kBytes = 1 << 20;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kBytes);
  GuestMemory memory{bytes, kBytes};

  std::span<std::uint8_t> at(std::uint64_t address, std::uint64_t n) {
    return std::span(bytes).subspan(address, n);
  }

  // A chain of blocks for `n` bytes beside those in the slot.
  void chain(std::uint64_t address, std::size_t n, std::uint8_t token) {
    constexpr std::uint64_t kStride = 1024;
    for (std::uint32_t number = 0; number * 512 < n; ++number, address += kStride) {
      const auto block = at(address, kMailboxBytes);
      const bool last = (number + 1) * 512 >= n;
      set(block, {4480, 64}, last ? 0 : address + kStride);
      set(block, {4544, 32}, number);
      set(block, {4584, 8}, token);
    }
  }

  static constexpr std::uint64_t kIn = 0x10000, kOut = 0x20000;
  static constexpr std::uint8_t kToken = 0x5a;

  // Puts `in` into the slot at `address` and gives it to the device.
  void give(std::uint64_t address, std::span<const std::uint8_t> in, std::uint32_t answer_bytes) {
    const auto slot = at(address, kSlotBytes);
    slot[0] = 7;
    set(slot, {32, 32}, in.size());
    set(slot, {64, 64}, in.size() > 16 ? kIn : 0);
    set(slot, {384, 64}, answer_bytes > 16 ? kOut : 0);
    set(slot, {448, 32}, answer_bytes);
    slot[60] = kToken;
    std::memcpy(slot.data() + 16, in.data(), std::min<std::size_t>(in.size(), 16));
    if (in.size() > 16) chain(kIn, in.size() - 16, kToken);
    for (std::size_t i = 16; i < in.size(); ++i)
      bytes[kIn + (i - 16) / 512 * 1024 + (i - 16) % 512] = in[i];
    if (answer_bytes > 16) chain(kOut, answer_bytes - 16, kToken);
    slot[63] = 1;
  }
};

}  // namespace twinpath::softhca::pci::test
