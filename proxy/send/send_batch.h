#pragma once
// Messages that leave together: as one chain of work requests behind one doorbell, with one
// completion for all of them.  Small host messages among them share an RDMA write (parcel.h).
//
// All of a batch go on one queue, chosen when it is posted.  Threads: under the hub's lock.
#include <array>

#include "plugin/base/counters.h"
#include "plugin/base/sync.h"
#include "proxy/send/outgoing.h"

namespace twinpath {

// Messages of one batch.
inline constexpr int kSendBatch = 16;
static_assert(kSendBatch <= kParcelMost);

class SendBatch {
 public:
  bool empty() const { return count_ == 0; }
  int count() const { return count_; }
  bool full() const { return count_ == kSendBatch; }
  const Outgoing& last() const { return messages_[static_cast<std::size_t>(count_ - 1)]; }
  void add(const Outgoing& message) {
    if (message.small()) small_ |= 1u << count_;
    messages_[static_cast<std::size_t>(count_++)] = message;
    bytes_ += message.bytes;
  }
  // The same of host memory and a receive that wants a notice, made in its place.
  TP_ALWAYS_INLINE void add_plain(const std::uint8_t* data, const ProxyMemory* memory,
                                  CellView cell, CellMeta meta, std::uint32_t bytes,
                                  std::uint16_t slot) {
    if (bytes <= kParcelBytes && meta.copyable()) small_ |= 1u << count_;
    Outgoing& m = messages_[static_cast<std::size_t>(count_++)];
    m.data = data;
    m.memory = memory;
    m.cell = cell;
    m.meta = meta;
    m.bytes = bytes;
    m.slot = slot;
    if constexpr (counters::kConnectionCounts) bytes_ += bytes;
  }
  // Of all messages in it.
  std::uint64_t bytes() const { return bytes_; }
  // Whether a parcel can be made of some.
  bool wants_parcel() const { return (small_ & (small_ - 1)) != 0; }

  // Where a parcel may be laid together: null, or kParcelStride bytes with that lkey.
  struct Parcel {
    std::uint8_t* data = nullptr;
    std::uint32_t lkey = 0;
    std::uint8_t number = 0;
  };
  // Posts all of them and forgets them.  The completion, under `wr_id`, speaks for all.  0 or an
  // errno.
  int post(const Lane& lane, const WriteMaker& maker, const Parcel& parcel, std::uint64_t wr_id);

 private:
  // A work request for each, and for a size that goes behind it.
  static constexpr std::size_t kMost = 2 * kSendBatch + 1;
  struct Chain {
    std::array<ibv_send_wr, kMost> wrs;
    std::array<ibv_sge, kMost> sges;
    std::array<std::uint32_t, kSendBatch> sizes;
    std::size_t count = 0;
    void link(ibv_send_wr& wr) {
      if (count > 0) wrs[count - 1].next = &wr;
    }
  };
  // Those that go by themselves: a bit each.
  TP_APART void add_whole(Chain& chain, std::uint32_t which, const Lane& lane,
                          const WriteMaker& maker, std::uint64_t wr_id) const;
  // Whether they are all messages of one irecv of several, and each fills its buffer: then one
  // notice will do.
  bool fills_group() const;
  TP_APART void add_group(Chain& chain, const Lane& lane, const WriteMaker& maker,
                          std::uint64_t wr_id) const;

  std::array<Outgoing, kSendBatch> messages_;
  int count_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t small_ = 0;  // a bit for each that a parcel may carry
};

// Which groups have been answered in part: members wait for each other.  By the receiver's slot,
// which no two receives have at a time.
class GroupCount {
 public:
  // A member has been sent; whether it was the last.
  bool complete(CellMeta meta) {
    std::uint8_t& left = left_[meta.slot()];
    if (left == 0) left = meta.group();
    return --left == 0;
  }
  unsigned left(CellMeta meta) const { return left_[meta.slot()]; }
  // So many of them are missing; 0: none has been sent.
  void set(CellMeta meta, unsigned left) { left_[meta.slot()] = static_cast<std::uint8_t>(left); }

 private:
  std::array<std::uint8_t, kRecvSlots> left_{};
};

}  // namespace twinpath
