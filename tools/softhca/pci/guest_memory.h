#pragma once
// The memory of the virtual machine, which is a file that this process maps too: a DMA is a copy to
// or from a guest physical address.
//
// Threads: any.  The guest writes whenever it likes, so what is decided by a value is read once.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/fabric/soft/mlx5/field.h"

namespace twinpath::softhca::pci {

class GuestMemory {
 public:
  GuestMemory() = default;  // none
  // `bytes`: all of it, for as long as this, which is the contents of `file`.  `low_bytes`: what
  // lies from address `first` on; the rest lies from 4 GiB.
  GuestMemory(std::span<std::uint8_t> bytes, std::uint64_t low_bytes, int file = -1,
              std::uint64_t first = 0)
      : bytes_(bytes), low_bytes_(low_bytes), first_(first), file_(file) {}

  // Where QEMU's machine q35 puts the memory: all of it below the hole for PCI where that is
  // possible, else 2 GiB there.
  static constexpr std::uint64_t low_bytes_of_q35(std::uint64_t bytes) {
    constexpr std::uint64_t kHole = 0xb0000000, kLow = 0x80000000;
    return bytes >= kHole ? kLow : bytes;
  }

  // Machine virt (arm64) has all of it from 1 GiB on.
  static constexpr std::uint64_t kFirstOfVirt = std::uint64_t{1} << 30;

  // Null when any of it lies outside.
  std::uint8_t* at(std::uint64_t address, std::uint64_t bytes) const {
    constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
    const bool high = low_bytes_ < bytes_.size() && address >= kHigh;
    const std::uint64_t offset = address - (high ? kHigh - low_bytes_ : first_);
    const std::uint64_t end = high ? bytes_.size() : std::min(low_bytes_, bytes_.size());
    if (offset > end || bytes > end - offset) return nullptr;
    return bytes_.data() + offset;
  }
  // What lies in one piece, and its address.
  std::uint64_t first() const { return first_; }
  std::span<std::uint8_t> low() const {
    return bytes_.first(std::min<std::uint64_t>(low_bytes_, bytes_.size()));
  }
  std::span<std::uint8_t> all() const { return bytes_; }
  // Of what at() gave, in all().
  std::uint64_t offset_of(const std::uint8_t* at) const {
    return static_cast<std::uint64_t>(at - bytes_.data());
  }
  int file() const { return file_; }

 private:
  std::span<std::uint8_t> bytes_;
  std::uint64_t low_bytes_ = 0, first_ = 0;
  int file_ = -1;
};

// Pages have this many bytes, or a power of two more.
inline constexpr std::uint64_t kGuestPage = 4096;
// Where commands that make queues and keys have the list of their pages.
inline constexpr std::size_t kPageListAt = 272;

// The addresses of pages in a command, from `at` on: 8 bytes each, of which the low 12 bits are
// flags.
inline std::vector<std::uint64_t> page_list(std::span<const std::uint8_t> command, std::size_t at) {
  std::vector<std::uint64_t> pages;
  for (; at + 8 <= command.size(); at += 8)
    pages.push_back(soft::mlx5::get(command, {static_cast<std::uint32_t>(8 * at), 64}) &
                    ~std::uint64_t{0xfff});
  return pages;
}

}  // namespace twinpath::softhca::pci
