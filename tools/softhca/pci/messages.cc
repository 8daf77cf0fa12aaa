#include "tools/softhca/pci/messages.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace twinpath::softhca::pci {
namespace {

using soft::mlx5::Field;
using soft::mlx5::get;

// Of a slot.
constexpr Field kType{0, 8};
constexpr Field kInLength{32, 32}, kInPointer{64, 64};
constexpr Field kOutPointer{384, 64}, kOutLength{448, 32};
constexpr Field kToken{480, 8};
constexpr std::size_t kIn = 16, kOut = 32, kInline = 16, kStatus = 63;
constexpr std::uint64_t kCommand = 7;
// Of a block.
constexpr Field kNext{4480, 64}, kBlock{4544, 32}, kBlockToken{4584, 8};
constexpr std::size_t kBlockData = 512;
constexpr std::uint32_t kShortest = 8,
                        kLongest = 1u << 24;  // a key lists 8 bytes a page: 2 MiB for 1 GiB

// Goes along a chain of blocks with the `bytes` that are not in the slot.
template <class Copy>
Delivery for_blocks(const GuestMemory& memory, std::uint64_t pointer, std::size_t bytes,
                    std::uint64_t token, Delivery bad_pointer, Copy copy) {
  std::size_t done = 0;
  for (std::uint64_t number = 0; done < bytes; ++number) {
    std::uint8_t* const block = memory.at(pointer, kMailboxBytes);
    if (pointer == 0 || pointer % kBlockData != 0 || block == nullptr) return bad_pointer;
    const std::span<const std::uint8_t> there(block, kMailboxBytes);
    if (get(there, kBlockToken) != token) return Delivery::token;
    if (get(there, kBlock) != number) return Delivery::block_number;
    const std::size_t here = std::min(kBlockData, bytes - done);
    copy(block, done, here);
    done += here;
    pointer = get(there, kNext);
  }
  return Delivery::ok;
}

}  // namespace

bool Slot::given() const {
  // Acquire: the command was written before its last byte, the owner.
  const std::uint8_t owner =
      std::atomic_ref<std::uint8_t>(slot_[kStatus]).load(std::memory_order_acquire);
  return slot_[0] == kCommand && (owner & 1) != 0;
}

Delivery Slot::read(Message& message) const {
  const std::span<const std::uint8_t> slot(slot_, kSlotBytes);
  if (get(slot, kType) != kCommand) return Delivery::descriptor;
  const auto bytes = static_cast<std::uint32_t>(get(slot, kInLength));
  if (bytes < kShortest || bytes > kLongest) return Delivery::in_length;
  message.answer_bytes = static_cast<std::uint32_t>(get(slot, kOutLength));
  if (message.answer_bytes < kShortest || message.answer_bytes > kLongest)
    return Delivery::out_length;
  message.in.resize(bytes);
  const std::size_t here = std::min<std::size_t>(bytes, kInline);
  std::memcpy(message.in.data(), slot_ + kIn, here);
  return for_blocks(memory_, get(slot, kInPointer), bytes - here, get(slot, kToken),
                    Delivery::in_pointer,
                    [&](const std::uint8_t* block, std::size_t at, std::size_t n) {
                      std::memcpy(message.in.data() + kInline + at, block, n);
                    });
}

Delivery Slot::write(std::span<const std::uint8_t> answer) const {
  const std::span<const std::uint8_t> slot(slot_, kSlotBytes);
  const std::size_t here = std::min(answer.size(), kInline);
  std::memcpy(slot_ + kOut, answer.data(), here);
  return for_blocks(memory_, get(slot, kOutPointer), answer.size() - here, get(slot, kToken),
                    Delivery::out_pointer, [&](std::uint8_t* block, std::size_t at, std::size_t n) {
                      std::memcpy(block, answer.data() + kInline + at, n);
                    });
}

void Slot::hand_back(Delivery delivery) const {
  // Release: the answer is there before the driver sees that the slot is its own.
  std::atomic_ref<std::uint8_t>(slot_[kStatus])
      .store(static_cast<std::uint8_t>(static_cast<unsigned>(delivery) << 1),
             std::memory_order_release);
}

}  // namespace twinpath::softhca::pci
