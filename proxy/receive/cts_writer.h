#pragma once
// The receiver's side of the clear-to-send ring: numbers the cells, writes them to the sender, and
// knows how far it may run ahead of it.
//
// A cell goes out when its receive is posted, unless the sender still has more cells than wait
// here: then it may wait for company, which costs the sender nothing (due() below says when not).
//
// A cell's place may be used again when the sender has certainly used the cell (used_cells.h).
//
// Threads: under the hub's lock.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "proxy/queues/depths.h"
#include "proxy/queues/queue_set.h"
#include "proxy/queues/registered_buffer.h"
#include "proxy/receive/used_cells.h"
#include "proxy/wire/cts.h"
#include "proxy/wire/failover.h"

namespace twinpath {

// Cells that may wait, and those of one write.
inline constexpr int kCtsBatch = 16;

class CtsWriter {
 public:
  // `shadow`: registered memory of layout.ring_bytes(), for adapters that take too little inline;
  // else null.  `keep`: cells can be written again (restart).
  CtsWriter(RegisteredBuffer* shadow, CtsLayout layout, const Queue& queue,
            std::uint64_t remote_ring, std::uint32_t remote_rkey, CompletionHub::CommId id,
            bool keep);

  // Goes on with another queue, at cell `seen`: those before it have reached the sender, those from
  // it on have not.  The queues before it are halted.  All of these cells say that no parcel has
  // been read.
  void restart(const Queue& queue, std::uint32_t remote_rkey, std::uint64_t seen);

  // Gives the cells that are not known to be used these keys of the memory that they name.
  void renew_keys(std::span<const KeyRange> memory);

  // Whether that many more cells may be written.
  bool room_for(unsigned cells) const { return next_ + cells - used_.ended() <= kCtsCells; }
  // Of the next `count` cells, which the caller asked room_for before: their number.  Each is then
  // to be filled: cell(number), whose gen is set here.
  std::uint64_t add(unsigned count, bool no_completion) {
    const std::uint64_t first = next_;
    if (no_completion) [[unlikely]] {
      --open_;  // posting adds it
      used_.no_completion(first);
    }
    next_ += count;
    return first;
  }
  // What the sender says in the box: receives without completion before that are over.
  void learn_used(std::uint32_t before) { used_.told(before, posted_); }
  // Where cell `seq` is laid before it is posted.
  std::uint8_t* cell(std::uint64_t seq) { return cells_ + layout_.stride() * (seq & place_mask_); }
  // How many cells from that one on lie one behind the other.
  std::size_t in_a_row(std::uint64_t seq) const { return place_mask_ + 1 - (seq & place_mask_); }
  const CtsLayout& layout() const { return layout_; }

  // Cells that wait: before adding, there must be room for what comes.
  std::uint64_t held() const { return next_ - posted_; }
  bool room_to_hold(unsigned cells) const { return held() + cells <= kCtsBatch; }
  // Cells that the sender may have unused, without those of receives without completion.
  std::int64_t open() const { return open_; }
  // Whether those that wait should go now: the sender has no more than they are.
  bool due() const { return static_cast<std::int64_t>(held()) >= open_; }
  bool posted(std::uint64_t seq) const { return seq < posted_; }
  // Counts: cells of all receives so far.
  std::uint64_t added() const { return next_; }
  // Counts: cells that are on the wire, and those known to be used without a gap.
  std::uint64_t posted() const { return posted_; }
  std::uint64_t ended() const { return used_.ended(); }
  // Sends what waits (something does), as far as the send queue has room.  0 or an errno.
  int post();

  // The sender has used these cells.
  void used(std::uint64_t first, unsigned count) {
    open_ -= count;
    used_.used(first, count);
  }
  // A signalled write of ours is done, and with it those before; of a queue in use.
  void on_completion(std::uint64_t wr_id);

 private:
  void use(const Queue& queue, std::uint32_t remote_rkey);

  RegisteredBuffer* const shadow_;
  const std::uint64_t place_mask_;
  // Of cells that go inline, which copies them: a ring's if they may be written again, else of
  // those between their receive and their write.  Untouched until cells are laid there.
  const std::unique_ptr<std::uint64_t[]> own_;
  std::uint8_t* const cells_;
  const CtsLayout layout_;
  std::uint64_t posted_ = 0;  // all before this one are on the wire
  std::uint64_t next_ = 0;
  std::int64_t open_ = 0;  // on the wire and not known to be used, but for optional ones
  int unpolled_ = 0;       // work requests posted and not known complete
  int unsignalled_ = 0;    // since the last signalled one
  ibv_qp* qp_ = nullptr;
  std::uint64_t run_cells_ = 1;  // of one write
  ibv_send_wr wr_{};
  ibv_sge sge_{};
  const std::uint64_t ring_;
  const unsigned flags_;
  UsedCells used_;
};

}  // namespace twinpath
