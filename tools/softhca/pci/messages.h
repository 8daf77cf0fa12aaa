#pragma once
// A slot of the command queue and the mailboxes behind it, as the driver writes them: 64 bytes with
// the first 16 of the command and of the answer, the rest in chains of blocks of 512.
//
// Threads: one at a time for a slot, which belongs to the device from the driver's giving it to
// hand_back().
#include <cstdint>
#include <vector>

#include "tools/softhca/pci/guest_memory.h"

namespace twinpath::softhca::pci {

inline constexpr std::uint32_t kSlotBytes = 64;
inline constexpr std::uint32_t kMailboxBytes = 576;  // a block: 512 of data, and where the next is

// Why a command could not be taken or answered at all, as the device numbers it in the slot.
enum class Delivery : std::uint8_t {
  ok = 0x0,
  token = 0x2,         // a block is of another command
  block_number = 0x3,  // or out of its order
  out_pointer = 0x4,
  in_pointer = 0x5,
  in_length = 0x7,
  out_length = 0x8,
  descriptor = 0x10,  // the slot's type
};

struct Message {
  std::vector<std::uint8_t> in;
  std::uint32_t answer_bytes = 0;
};

class Slot {
 public:
  Slot(const GuestMemory& memory, std::uint8_t* slot) : memory_(memory), slot_(slot) {}

  // Whether the driver has given it to the device.
  bool given() const;
  Delivery read(Message& message) const;
  Delivery write(std::span<const std::uint8_t> answer) const;
  // The driver's again; it may look at once.
  void hand_back(Delivery delivery) const;

 private:
  const GuestMemory& memory_;
  std::uint8_t* const slot_;
};

}  // namespace twinpath::softhca::pci
