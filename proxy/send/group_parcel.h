#pragma once
// The parcel of a group whose members come one after the other, in the order of their cells and all
// small: nearly every group does.  It is laid together while they come, so that a member costs its
// copy and little else; what is the same for all members was looked at with the first.
//
// Whatever else comes ends it: then its members are a batch like any other (send_batch.h).
// Threads: under the hub's lock.
#include <cstring>

#include "plugin/base/sync.h"
#include "proxy/queues/parcel_pool.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

class GroupParcel {
 public:
  // Whether members are missing; without a parcel none are.
  bool open() const { return left_ != 0; }
  unsigned left() const { return left_; }
  unsigned sent() const { return members_ - left_; }
  unsigned members() const { return members_; }
  // Of the next member; all others of the group have come, too, and say the same but for their
  // part.
  CellView cell() const { return CellView(cell_); }
  // Of member `i`, as it was validated.
  CellMeta meta(unsigned i) const { return CellMeta(meta_ + i * kOneSub); }

  // Of a group's first cell, which says `meta`, in a block of its own.
  void begin(const std::uint8_t* cell, std::size_t stride, CellMeta meta, std::uint16_t block,
             std::uint8_t* block_data) {
    cell_ = cell;
    stride_ = static_cast<std::uint32_t>(stride);
    meta_ = meta.bits();
    next_entry_ = encode(ParcelEntry{meta.receive(), 0});
    members_ = left_ = meta.group();
    block_ = block;
    begin_ = entry_ = block_data;
    to_ = data_begin();
    padding_ = 0;
  }
  // The next member; whether it was the last.
  TP_ALWAYS_INLINE bool add_longest(const void* data) {
    std::memcpy(to_, data, kParcelBytes);
    to_ += kParcelBytes;
    return added(kParcelBytes);
  }
  bool add(const void* data, std::uint32_t bytes) {
    lay_message(to_, data, bytes);
    to_ += padded(bytes);
    padding_ += static_cast<std::uint32_t>(padded(bytes)) - bytes;
    return added(bytes);
  }
  // Of all its messages.
  std::uint64_t message_bytes() const {
    return static_cast<std::uint64_t>(to_ - data_begin()) - padding_;
  }
  std::uint8_t* data() const { return begin_; }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(to_ - begin_); }
  std::uint16_t block() const { return block_; }
  void end() { left_ = 0; }

 private:
  std::uint8_t* data_begin() const { return begin_ + parcel_data_at(members_); }
  TP_ALWAYS_INLINE bool added(std::uint32_t bytes) {
    const std::uint32_t entry = next_entry_ | encode(ParcelEntry{0, bytes});
    std::memcpy(entry_, &entry, sizeof entry);
    next_entry_ += kOneSub;
    entry_ += sizeof entry;
    cell_ += stride_;
    return --left_ == 0;
  }

  std::uint32_t left_ = 0;
  std::uint32_t next_entry_ = 0;  // without its length
  const std::uint8_t* cell_ = nullptr;
  std::uint8_t *entry_ = nullptr, *to_ = nullptr;  // where the next one is laid
  std::uint32_t stride_ = 0;
  std::uint32_t members_ = 0;
  std::uint32_t meta_ = 0;  // of the first
  std::uint32_t padding_ = 0;
  std::uint8_t* begin_ = nullptr;
  std::uint16_t block_ = kNoBlock;
};

}  // namespace twinpath
