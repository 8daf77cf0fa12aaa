#pragma once
// The sender's end of the ring of clear-to-send cells (wire/cts.h): which cells have come, which of
// them messages have used, and what the receiver has to be told of that.
//
//      used            seen: ready, or used ahead      not written yet
//   . . . . . . . . | r r U r r U r r r r r r r r r | . . . . . . .
//                   head                            seen
//
// Cells of one tag are used in order; another tag may be used before, ahead of `head`.
//
// Reads the ring's memory, which the peer's adapter writes, and nothing else.  Threads: under the
// hub's lock.
#include <algorithm>
#include <bitset>
#include <cstdint>

#include "plugin/base/sync.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

// When the sender says how far all cells are used: each kUsedPeriod cells, for as long as it has
// answered a receive without completion that the last report did not cover.  Such a receive may lie
// beyond `head`, which is all that a report can say (kUsedAt in wire/parcel.h).
class UsedReport {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  // A receive without completion was answered, that of cell `seq`.
  void answered(std::uint64_t seq) {
    end_ = std::max(end_, seq + 1);
    due_at_ = told_ + kUsedPeriod;
  }
  // From which head on it is due.
  std::uint64_t due_at() const { return due_at_; }
  // Whether there ever was such a receive, so that what was told could have been lost.
  bool needed() const { return end_ != 0; }
  void told(std::uint64_t head) {
    told_ = head;
    due_at_ = end_ > told_ ? told_ + kUsedPeriod : kNever;
  }

 private:
  std::uint64_t due_at_ = kNever;
  std::uint64_t told_ = 0;
  std::uint64_t end_ = 0;  // all of those receives lie before this one
};

// The number of a cell of which the low half is known, and which is not 2^32 before `seen`.
constexpr std::uint64_t whole_number(std::uint64_t seen, std::uint32_t low) {
  return seen - static_cast<std::uint32_t>(static_cast<std::uint32_t>(seen) - low);
}

class CtsRing {
 public:
  // kCtsCells cells, which outlive this.
  CtsRing(const std::uint8_t* cells, CtsLayout layout) : cells_(cells), layout_(layout) {}

  const CtsLayout& layout() const { return layout_; }
  const std::uint8_t* at(std::uint64_t seq) const { return cells_ + layout_.offset(seq); }
  CellView cell(std::uint64_t seq) const { return CellView(at(seq)); }
  // The first cell that is not used.
  std::uint64_t head() const { return head_; }
  // All before this one have come.
  std::uint64_t seen() const { return seen_; }
  // Whether the head has come, and is there to be used.
  TP_ALWAYS_INLINE bool ready() { return head_ != seen_ || see(); }

  // Takes note of the next cell if it has come.  One that claims parcels that were never sent is
  // not taken (lies).
  bool see() {
    const std::uint8_t* const next = at(seen_);
    if (!layout_.ready(next, seen_)) return false;
    if (!credit_.told(CellView(next).meta().parcels())) [[unlikely]]
      return false;
    ++seen_;
    return true;
  }
  // Whether the next cell has come and cannot be taken.
  bool lies() { return layout_.ready(at(seen_), seen_) && !see(); }
  // All that has come, whatever it says of parcels: for when nothing more can come, and both ends
  // will count parcels anew.
  void see_all() {
    while (layout_.ready(at(seen_), seen_)) ++seen_;
  }
  // The first cell with that tag that is not used; false when none has come.
  bool find(int tag, std::uint64_t& seq) {
    seq = head_;
    if (!ready()) return false;
    if (cell(seq).tag() == tag) [[likely]]
      return true;
    while (++seq != seen_ || see())
      if (!used(seq) && cell(seq).tag() == tag) return true;
    return false;
  }
  // Whether all cells of the group that the head begins, which says `first`, are here, one behind
  // the other in memory, and say the same but for their part.  They are seen from then on: of
  // parcels they say what the first did.
  bool see_group(CellMeta first) {
    const std::uint64_t end = head_ + first.group();
    if (cts_place(head_) + first.group() > kCtsCells) return false;
    const CtsLayout layout = layout_;
    const std::uint8_t* other = at(head_);
    std::uint32_t meta = first.bits();
    for (std::uint64_t seq = head_ + 1; seq != end; ++seq) {
      other += layout.stride();
      meta += kOneSub;
      if (!layout.ready(other, seq) || CellView(other).meta().bits() != meta) return false;
    }
    seen_ = std::max(seen_, end);
    return true;
  }

  // A message is for that cell, which was seen and is not used.
  void use(std::uint64_t seq) {
    if (seq != head_) {
      used_[cts_place(seq)] = true;
      ++used_ahead_;
      return;
    }
    use_head();
  }
  TP_ALWAYS_INLINE void use_head() {
    ++head_;
    if (used_ahead_ != 0) [[unlikely]]
      pass_used();
  }
  // The same while none is used ahead.
  void use_next() { ++head_; }
  int used_ahead() const { return used_ahead_; }
  // Of a cell between head and seen.
  bool used(std::uint64_t seq) const { return used_ahead_ != 0 && used_[cts_place(seq)]; }
  // Of a cell that was used lately, by the low half of its number.
  std::uint64_t number(std::uint32_t low) const { return whole_number(seen_, low); }

  // --- parcels
  // Whether one may be sent.  Cells say how many were read: looks at further ones if need be.
  bool find_credit() {
    while (!credit_.any())
      if (!see()) return false;
    return true;
  }
  bool any_credit() const { return credit_.any(); }
  // The number of a parcel that is sent now.
  std::uint8_t take_credit() { return credit_.take(); }
  void count_parcels_anew() { credit_ = {}; }

  // --- what the receiver is told
  UsedReport& report() { return report_; }
  const UsedReport& report() const { return report_; }
  bool report_due() const { return head_ >= report_.due_at(); }

 private:
  TP_APART void pass_used() {
    for (; used_ahead_ != 0 && used_[cts_place(head_)]; ++head_, --used_ahead_)
      used_[cts_place(head_)] = false;
  }

  const std::uint8_t* const cells_;
  const CtsLayout layout_;
  std::uint64_t head_ = 0;
  std::uint64_t seen_ = 0;
  UsedReport report_;
  int used_ahead_ = 0;  // cells after head_ that are used
  ParcelCredit credit_;
  std::bitset<kCtsCells> used_;  // of those, by place
};

}  // namespace twinpath
