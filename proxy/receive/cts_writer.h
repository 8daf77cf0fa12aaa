#pragma once
// The receiver's side of the clear-to-send ring: numbers the cells, holds them back until a batch
// is worth a write, and knows how far it may run ahead of the sender.
//
// A cell's place may be used again when the sender has certainly used the cell.  For a normal
// receive its completion says so.  A receive without completion says nothing; but a sender takes
// cells of one tag in order, so the completion of a later cell of the same tag speaks for it.
//
// Threads: under the hub's lock.
#include <array>
#include <cstdint>

#include "proxy/queues/depths.h"
#include "proxy/queues/queue_set.h"
#include "proxy/queues/registered_buffer.h"
#include "proxy/wire/cts.h"

namespace twinpath {

// Cells of one write: 8 fill what queues commonly take inline.
inline constexpr int kCtsBatch = 16;
inline constexpr int kCtsSignalPeriod = 32;
// Fruitless tests after which held cells go out: some ten microseconds.
inline constexpr int kCtsPatience = 256;
// At most this many receives without completion in a row.
inline constexpr int kOptionalRun = 63;

class CtsWriter {
 public:
  CtsWriter(RegisteredBuffer& shadow, CtsLayout layout, std::uint64_t remote_ring,
            std::uint32_t remote_rkey, CompletionHub::CommId id)
      : shadow_(shadow), layout_(layout), ring_(remote_ring), rkey_(remote_rkey), id_(id) {}

  // Whether that many more cells may be written.
  bool room_for(int cells) const {
    return next_ + static_cast<std::uint64_t>(cells) - free_ <= kCtsCells;
  }
  // Whether a lone receive with that tag may do without completion now.
  bool may_skip_completion(int tag) const {
    return run_ < kOptionalRun && (optional_ == 0 || tag == optional_tag_);
  }
  // Adds a cell; its number.  The caller asked room_for before.
  std::uint64_t add(const Cts& cts);
  bool batch_full() const { return next_ - posted_ >= kCtsBatch; }
  // Whether new cells should go out now.  While the sender still has more cells than are waiting
  // here, they may wait for company; `idle_tests` is how often the caller has looked in vain
  // since something arrived, and bounds that wait, as the sender may want just a held cell's tag.
  bool due(int idle_tests) const {
    const std::uint64_t held = next_ - posted_;
    return held > 0 && (held >= open_ || batch_full() || idle_tests >= kCtsPatience);
  }
  bool posted(std::uint64_t seq) const { return seq < posted_; }
  // Sends what is pending, as far as the send queue has room.  0 or an errno.
  int post(Queue& queue);
  // The sender has used these `count` cells.
  void used(std::uint64_t first, int count);
  // A signalled write of ours is done.
  void on_completion(std::uint16_t generation);

  // For tests.
  std::uint64_t writes() const { return writes_; }

 private:
  enum class State : std::uint8_t { used, waiting, optional };
  struct Cell {
    std::int32_t tag = 0;
    State state = State::used;
  };
  int post_run(Queue& queue, std::uint64_t first, std::uint64_t end);
  void use(std::uint64_t seq);

  RegisteredBuffer& shadow_;
  const CtsLayout layout_;
  const std::uint64_t ring_;
  const std::uint32_t rkey_;
  const CompletionHub::CommId id_;
  std::array<Cell, kCtsCells> cells_{};
  std::uint64_t free_ = 0;    // all cells before this one are used
  std::uint64_t posted_ = 0;  // all before this one are on the wire
  std::uint64_t next_ = 0;
  std::uint64_t open_ = 0;  // on the wire and not known to be used
  int optional_ = 0;        // cells without completion that are not known to be used
  std::int32_t optional_tag_ = 0;
  int run_ = 0;               // of them since the last normal cell of that tag
  std::uint64_t writes_ = 0;  // work requests posted
  std::uint64_t done_ = 0;    // of them known complete
};

}  // namespace twinpath
