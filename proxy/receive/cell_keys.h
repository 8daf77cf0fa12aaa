#pragma once
// The keys of memory that clear-to-send cells name: of all the device's rails, or of the one queue
// in reserve that serves alone.  Where that may change, it is kept which memory each cell names.
//
// Threads: under the hub's lock.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/rdma/key_range.h"
#include "plugin/transport.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/wire/cts.h"

namespace twinpath {

class CellKeys {
 public:
  // `change`: there are queues in reserve.
  explicit CellKeys(bool change)
      : memory_(change ? std::make_unique<std::array<const Memory*, kCtsCells>>() : nullptr) {}

  bool change() const { return memory_ != nullptr; }
  // The rail whose key is a cell's key `i`.
  int rail(int i) const { return first_ + (i & mask_); }
  // From now on those of this rail alone; -1: of all.
  void use(int alone) {
    first_ = std::max(alone, 0);
    mask_ = alone < 0 ? ~0 : 0;
  }
  // Cell `seq` names that memory.
  void remember(std::uint64_t seq, const Memory* memory) {
    if (memory_ != nullptr) [[unlikely]]
      (*memory_)[cts_place(seq)] = memory;
  }
  // The memory that cells name, each piece once: of those that wait first, then of older ones,
  // which an answer without notice may still be on its way for.  `range(memory, address, bytes)`:
  // its keys, if it is registered still.  False when `needed`, and memory that a waiting cell names
  // has no key.
  template <class Range>
  bool collect(CtsWriter& cells, bool needed, std::vector<KeyRange>& into, Range&& range) const {
    bool known = true;
    const auto add = [&](std::uint64_t seq, bool waits) {
      const CellView cell(cells.cell(seq));
      if (cell.bytes() == 0) return;
      for (const KeyRange& one : into)
        if (one.covers(cell.address(), cell.bytes())) return;
      const std::optional<KeyRange> keys =
          range((*memory_)[cts_place(seq)], cell.address(), cell.bytes());
      if (keys) into.push_back(*keys);
      if (waits && needed) known = known && keys && keys->rkeys[0] != 0;
    };
    const std::uint64_t first = cells.added() - std::min<std::uint64_t>(cells.added(), kCtsCells);
    for (std::uint64_t seq = cells.ended(); seq != cells.added(); ++seq) add(seq, true);
    for (std::uint64_t seq = first; seq < cells.ended(); ++seq) add(seq, false);
    return known;
  }

 private:
  int first_ = 0, mask_ = ~0;
  // By the cell's place; null where keys stay.
  const std::unique_ptr<std::array<const Memory*, kCtsCells>> memory_;
};

}  // namespace twinpath
