#pragma once
// Which clear-to-send cells the sender has certainly used: only then may their places in the ring
// be written again.
//
//      used            used or not           not written yet
//   . . . . . . . . | u u U u o u u U o u | . . . . . . .
//                   ended                 posted
//
// Of a normal receive its completion says so (used), in any order.  Of one without completion (o)
// the sender's count does, which it writes into the box now and then (UsedReport in
// send/cts_ring.h, kUsedAt in wire/parcel.h).
//
// Threads: under the hub's lock.
#include <bitset>
#include <cstdint>

#include "plugin/base/sync.h"
#include "proxy/wire/cts.h"

namespace twinpath {

class UsedCells {
 public:
  // All cells before this one are used.
  std::uint64_t ended() const { return ended_; }
  // Cell `seq`, which is not on the wire yet, is of a receive without completion.
  void no_completion(std::uint64_t seq) {
    ++silent_count_;
    silent_[cts_place(seq)] = true;
  }
  // These were not known to be used.
  void used(std::uint64_t first, unsigned count) {
    if (first == ended_ && ahead_ == 0) [[likely]]
      ended_ += count;
    else
      used_out_of_order(first, count);
  }
  // The sender says that it has used all cells before that one, by the low half of its number: no
  // earlier one than it said last, and none that is not on the wire, else it is nonsense and not
  // heeded.  Of those with a completion this says nothing: their data may be on its way.
  void told(std::uint32_t before, std::uint64_t posted) {
    const std::uint32_t further = before - static_cast<std::uint32_t>(told_);
    if (further > posted - told_) return;
    told_ += further;
    for (std::uint64_t seq = ended_; seq < told_ && silent_count_ > 0; ++seq) {
      const std::size_t place = cts_place(seq);
      if (!silent_[place]) continue;
      silent_[place] = false;
      --silent_count_;
      used_[place] = true;
      ++ahead_;
    }
    pass_used();
  }

 private:
  TP_APART void used_out_of_order(std::uint64_t first, unsigned count) {
    for (std::uint64_t seq = first; seq != first + count; ++seq) used_[cts_place(seq)] = true;
    ahead_ += static_cast<int>(count);
    pass_used();
  }
  void pass_used() {
    for (; ahead_ > 0 && used_[cts_place(ended_)]; ++ended_, --ahead_)
      used_[cts_place(ended_)] = false;
  }

  std::uint64_t ended_ = 0;
  std::uint64_t told_ = 0;                // by the sender, last
  int ahead_ = 0;                         // cells after ended_ that are used
  int silent_count_ = 0;                  // cells without completion that are not known to be used
  std::bitset<kCtsCells> used_, silent_;  // by place
};

}  // namespace twinpath
