#pragma once
// Which messages a sender sends again once its queues were replaced, and in which order.
//
// Each goes by itself, the oldest first: of two without notice for one buffer the later one must be
// the last to arrive, and NCCL's own rule is that it waits for the earlier.
//
// Decides by what it is told alone.  Threads: under the hub's lock.
#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proxy/queues/depths.h"
#include "proxy/send/cts_ring.h"
#include "proxy/send/parcel_blocks.h"
#include "proxy/send/send_requests.h"
#include "proxy/wire/failover.h"

namespace twinpath {

class Replay {
 public:
  // It has not left yet, and will as if nothing had happened.
  void leave_out(std::uint16_t slot) { not_sent_[slot] = true; }

  // Of the others that are under way: ends those that the receiver has, and takes those that it
  // awaits, or of which it has no notice, out of their batches.  These stay pending all the while:
  // their owner looks without the lock.  False: the receiver says of one that was answered, now
  // never_offered(), that it had not offered it.
  bool choose(SendRequests& requests, const CtsRing& ring, const HeldState& theirs,
              ParcelBlocks& blocks) {
    count_ = 0;
    for (std::uint16_t slot = 0; requests.made(slot); ++slot) {
      SendRequest& r = requests.at(slot);
      if (r.pending() == 0 || not_sent_[slot]) continue;
      blocks.give_back(r);
      requests.restart(r);
      const std::uint64_t cell = ring.number(r.cell());
      const bool unnoted = r.is(SendRequest::kUnnoted);
      if (!unnoted && cell >= theirs.end) {
        never_offered_ = cell;
        return false;
      }
      if (unnoted || theirs.awaits(cell))
        slots_[count_++] = slot;
      else
        r.set_pending(0);
    }
    std::sort(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(count_),
              [&](std::uint16_t a, std::uint16_t b) {
                return ring.number(requests.at(a).cell()) < ring.number(requests.at(b).cell());
              });
    return true;
  }
  // In the order in which they are sent.
  std::span<const std::uint16_t> slots() const { return {slots_.data(), count_}; }
  std::uint64_t never_offered() const { return never_offered_; }

 private:
  std::bitset<kSendSlots> not_sent_;
  std::array<std::uint16_t, kSendSlots> slots_{};
  std::size_t count_ = 0;
  std::uint64_t never_offered_ = 0;
};

}  // namespace twinpath
