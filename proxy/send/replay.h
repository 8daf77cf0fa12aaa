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

  enum class Verdict : std::uint8_t {
    right,
    never_offered,  // the receiver says of one that was answered that it had not offered it
    lost,  // it awaits one that has ended here, so that its buffer may be its owner's again
  };
  // Of the others that are under way: ends those that the receiver has, and takes those that it
  // awaits, or of which it has no notice, out of their batches.  These stay pending all the while:
  // their owner looks without the lock.  Where that makes no sense, cell() is the first such one's.
  Verdict choose(SendRequests& requests, const CtsRing& ring, const HeldState& theirs,
                 ParcelBlocks& blocks) {
    count_ = 0;
    std::bitset<kCtsCells> going;  // what the receiver gets yet, by the cell's place
    for (std::uint16_t slot = 0; requests.made(slot); ++slot) {
      SendRequest& r = requests.at(slot);
      if (r.pending() == 0) continue;
      cell_ = ring.number(r.cell());
      const bool unnoted = r.is(SendRequest::kUnnoted);
      if (!unnoted) going[cts_place(cell_)] = true;
      if (not_sent_[slot]) continue;
      blocks.give_back(r);
      requests.restart(r);
      if (!unnoted && cell_ >= theirs.end) return Verdict::never_offered;
      if (unnoted || theirs.awaits(cell_))
        slots_[count_++] = slot;
      else
        r.set_pending(0);
    }
    // An adapter that fails may have acknowledged what it then tells nobody of.
    const std::uint64_t end = std::min(theirs.end, ring.seen());
    for (cell_ = std::max(theirs.begin, end - std::min<std::uint64_t>(end, kCtsCells)); cell_ < end;
         ++cell_)
      if (theirs.awaits(cell_) && !going[cts_place(cell_)] &&
          (cell_ < ring.head() || ring.used(cell_)))
        return Verdict::lost;
    std::sort(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(count_),
              [&](std::uint16_t a, std::uint16_t b) {
                return ring.number(requests.at(a).cell()) < ring.number(requests.at(b).cell());
              });
    return Verdict::right;
  }
  // In the order in which they are sent.
  std::span<const std::uint16_t> slots() const { return {slots_.data(), count_}; }
  std::uint64_t cell() const { return cell_; }

 private:
  std::bitset<kSendSlots> not_sent_;
  std::array<std::uint16_t, kSendSlots> slots_{};
  std::size_t count_ = 0;
  std::uint64_t cell_ = 0;
};

}  // namespace twinpath
