#pragma once
// The clock of the function: what its register shows (internal_timer) and completions tell.
#include <cstdint>

namespace twinpath::softhca::pci {

// Cycles of 6.4 ns at the time `now` (now_ns()), from a moment that does not matter.
constexpr std::uint64_t device_clock(std::int64_t now) {
  constexpr std::uint64_t kKhz = 156'250, kMillisecond = 1'000'000;
  const auto ns = static_cast<std::uint64_t>(now);
  return ns / kMillisecond * kKhz + ns % kMillisecond * kKhz / kMillisecond;
}

}  // namespace twinpath::softhca::pci
