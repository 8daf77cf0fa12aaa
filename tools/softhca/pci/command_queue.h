#pragma once
// The function's registers (initial segment, health buffer, clock), and the command queue behind
// them.
//
// BAR 0 is memory that the guest writes directly: nobody is called when it does, and of two stores
// to one word the first may be seen by nobody.  Hence two slots are offered only, one for commands
// and one for pages.  One that was given when only the other's ring was found is carried out after
// a while: its own may have been overwritten, or the driver may still be preparing it.  Without
// another's ring it waits for its own, however long the machine stands still between the two: a
// command that is answered before its ring is one that the driver does not wait for yet.
//
// Threads: one at a time.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "tools/softhca/pci/messages.h"

namespace twinpath::softhca::pci {

class CommandQueue {
 public:
  static constexpr unsigned kLogSlots = 1, kSlots = 1u << kLogSlots;
  static constexpr std::int64_t kGrace = 30'000'000;  // ns, from the other's ring

  // A slot with a command.
  using Run = std::function<void(unsigned number, const Slot& slot)>;

  // Both outlive it.
  CommandQueue(std::span<std::uint8_t> bar, const GuestMemory& memory);

  // The clock and the health counter, which the driver watches.
  void tick(std::int64_t now);
  // Carries out what was given.  `takes_unrung`: whether slots are looked at without a ring; not
  // while no driver has the function, whose queue is memory of somebody else then.  True when there
  // was something.
  bool poll(std::int64_t now, bool takes_unrung, const Run& run);

  // The firmware ends, which the health buffer tells for a while, and begins anew.  Nothing is
  // answered until a driver gives the device a queue.
  void fail(std::int64_t now);

  std::uint64_t rings_lost() const { return rings_lost_; }

 private:
  std::uint32_t load(std::uint32_t at) const;
  void store(std::uint32_t at, std::uint32_t value);
  std::uint32_t exchange(std::uint32_t at, std::uint32_t value);
  void latch();
  void tell_health(bool failed);

  const std::span<std::uint8_t> bar_;
  const GuestMemory& memory_;
  std::uint8_t* slots_ = nullptr;                                     // the driver's queue
  std::array<std::optional<std::int64_t>, kSlots> overwritten_at_{};  // perhaps
  std::int64_t next_beat_ = 0;
  std::uint32_t beats_ = 0;
  std::optional<std::int64_t> failed_at_;
  std::uint64_t rings_lost_ = 0;
};

}  // namespace twinpath::softhca::pci
