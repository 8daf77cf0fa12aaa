#pragma once
// Cells that were answered, for as long as the answer may have to be sent again: they lie in the
// ring, or, of answers without notice, in a copy, for the receiver may use their places again
// before the answer has arrived.
//
// Threads: under the hub's lock.
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/rdma/key_range.h"
#include "proxy/queues/depths.h"
#include "proxy/send/cts_ring.h"
#include "proxy/send/send_requests.h"
#include "proxy/send/staged_send.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/failover.h"

namespace twinpath {

class KeptCells {
 public:
  // `ring`: kCtsCells cells, which outlive this.
  KeptCells(std::uint8_t* ring, CtsLayout layout) : ring_(ring), layout_(layout) {}

  // Of the answer in that slot.
  void keep(std::uint16_t slot, const CellView& cell) {
    if (copies_.empty()) copies_.resize(layout_.stride() * kSendSlots);
    (void)cell.copy(copy(slot), layout_.field_bytes());
  }
  std::uint8_t* copy(std::uint16_t slot) { return copies_.data() + layout_.stride() * slot; }
  // Of a message that may have to be sent again.
  std::uint8_t* of(const SendRequest& r, const CtsRing& ring) {
    return r.is(SendRequest::kUnnoted) ? copy(r.slot()) : in_ring(ring.number(r.cell()));
  }
  std::uint8_t* in_ring(std::uint64_t seq) { return ring_ + layout_.offset(seq); }

  // A queue in reserve serves: from now on all keys are others.
  void keys_change() { keys_change_ = true; }
  // Gives a cell the keys that its memory has now.  False: there are none, and they have changed;
  // where they never have, the old ones are right.
  bool renew(std::uint8_t* cell, std::span<const KeyRange> memory) const {
    return CellView(cell).bytes() == 0 || renew_keys(layout_, cell, memory) || !keys_change_;
  }
  // All that may be answered yet, or answered again: with the keys that their memory has now.
  // False: one names memory that the receiver does not.  The receiver writes nothing into cells
  // that this end has seen, until they are answered; what it writes into later ones has the new
  // keys.
  bool renew_all(const CtsRing& ring, SendRequests& requests, StagedSends* staged,
                 const HeldState& theirs, std::span<const KeyRange> memory) {
    bool all = true;
    const auto more = [&](std::uint8_t* cell) { all = all && renew(cell, memory); };
    for (std::uint64_t seq = ring.head(); seq != ring.seen(); ++seq)
      if (!ring.used(seq)) more(in_ring(seq));
    requests.for_pending([&](const SendRequest& r) {
      if (r.is(SendRequest::kUnnoted) || theirs.awaits(ring.number(r.cell()))) more(of(r, ring));
    });
    if (staged != nullptr) staged->for_cells(more);
    return all;
  }

 private:
  std::uint8_t* const ring_;
  const CtsLayout layout_;
  std::vector<std::uint8_t> copies_;  // by slot; made with the first
  bool keys_change_ = false;
};

}  // namespace twinpath
