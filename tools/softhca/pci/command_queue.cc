#include "tools/softhca/pci/command_queue.h"

#include <atomic>

#include "tools/softhca/pci/device_clock.h"

namespace twinpath::softhca::pci {
namespace {

// Initial segment: words by their offsets.
constexpr std::uint32_t kFirmware = 0x00;   // minor, major
constexpr std::uint32_t kInterface = 0x04;  // command interface, subminor
constexpr std::uint32_t kQueueHigh = 0x10, kQueueLow = 0x14;
constexpr std::uint32_t kDoorbell = 0x18;
// Health buffer: the top bit of the first word says that a reset is asked for (rfr), the second
// byte of the second why (synd).
constexpr std::uint32_t kHealthReset = 0x238, kHealthSyndrome = 0x23c;
constexpr std::uint32_t kAsksForReset = 1u << 31, kFirmwareError = 1u << 16;
constexpr std::uint32_t kClockHigh = 0x1000, kClockLow = 0x1004;  // internal_timer
constexpr std::uint32_t kHealthCounter = 0x1010;

constexpr std::uint32_t kMajor = 20, kMinor = 31, kSubminor = 1014;
constexpr std::uint32_t kCommandInterface = 5;
// The low byte of kQueueLow: 2^n slots, of 2^m bytes each.
constexpr std::uint32_t kLogStride = 6;
static_assert(kSlotBytes == 1u << kLogStride);
constexpr std::uint32_t kSize = CommandQueue::kLogSlots << 4 | kLogStride;
constexpr std::uint32_t kSizeMask = 0xff, kAddressMask = 0xfffff000;
constexpr std::uint32_t kDisabled = 1u << 8;  // in kQueueLow: nic_interface

constexpr std::int64_t kBeat = 10'000'000;  // ns
// How long a failure is told: the driver looks every two or three seconds.
constexpr std::int64_t kFailure = 4'000'000'000;

std::uint32_t big(std::uint32_t value) { return __builtin_bswap32(value); }

}  // namespace

CommandQueue::CommandQueue(std::span<std::uint8_t> bar, const GuestMemory& memory)
    : bar_(bar), memory_(memory) {
  store(kFirmware, kMinor << 16 | kMajor);
  store(kInterface, kCommandInterface << 16 | kSubminor);
  store(kQueueLow, kSize);
}

std::uint32_t CommandQueue::load(std::uint32_t at) const {
  // Acquire: what the driver wrote before it is seen with it.
  return big(std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(bar_.data() + at))
                 .load(std::memory_order_acquire));
}

void CommandQueue::store(std::uint32_t at, std::uint32_t value) {
  // Release: as the driver reads registers, in order.
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(bar_.data() + at))
      .store(big(value), std::memory_order_release);
}

std::uint32_t CommandQueue::exchange(std::uint32_t at, std::uint32_t value) {
  // Taken, not read: a ring between a load and a store would be lost.
  return big(std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(bar_.data() + at))
                 .exchange(big(value), std::memory_order_acq_rel));
}

void CommandQueue::tick(std::int64_t now) {
  if (failed_at_ && now - *failed_at_ >= kFailure) {
    failed_at_.reset();
    tell_health(false);
  }
  if (now < next_beat_ || failed_at_) return;
  next_beat_ = now + kBeat;
  store(kHealthCounter, ++beats_ & 0xffffff);
  const std::uint64_t clock = device_clock(now);
  store(kClockHigh, static_cast<std::uint32_t>(clock >> 32));
  store(kClockLow, static_cast<std::uint32_t>(clock));
}

// The driver writes the queue's address over its size, and reads the size again when it is loaded
// the next time.
void CommandQueue::latch() {
  const std::uint32_t low = load(kQueueLow);
  if ((low & kSizeMask) == kSize) return;
  const std::uint64_t address = std::uint64_t{load(kQueueHigh)} << 32 | (low & kAddressMask);
  store(kQueueLow, (low & ~kSizeMask) | kSize);
  slots_ = memory_.at(address, kSlots * kSlotBytes);
  overwritten_at_ = {};
}

void CommandQueue::fail(std::int64_t now) {
  slots_ = nullptr;
  failed_at_ = now;
  store(kQueueLow, kDisabled | kSize);
  tell_health(true);
}

void CommandQueue::tell_health(bool failed) {
  store(kHealthSyndrome, failed ? kFirmwareError : 0);
  store(kHealthReset, failed ? kAsksForReset : 0);
}

bool CommandQueue::poll(std::int64_t now, bool takes_unrung, const Run& run) {
  latch();
  const std::uint32_t rung = load(kDoorbell) == 0 ? 0 : exchange(kDoorbell, 0);
  if (slots_ == nullptr) return false;
  bool ran = false;
  for (unsigned i = 0; i < kSlots; ++i) {
    const Slot slot(memory_, slots_ + i * kSlotBytes);
    if (!slot.given()) {
      overwritten_at_[i].reset();
      continue;
    }
    if ((rung >> i & 1) == 0) {
      if (!takes_unrung) continue;
      if (rung != 0 && !overwritten_at_[i]) overwritten_at_[i] = now;
      if (!overwritten_at_[i] || now - *overwritten_at_[i] < kGrace) continue;
      ++rings_lost_;
    }
    overwritten_at_[i].reset();
    run(i, slot);
    ran = true;
  }
  return ran;
}

}  // namespace twinpath::softhca::pci
