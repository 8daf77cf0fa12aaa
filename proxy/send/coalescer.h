#pragma once
// Which messages of a send comm leave together, and when.
//
//   small (a parcel could carry it) and alone  while another small one is under way it waits for
//                  that one's completion, as Nagle has it, and for one more call: the next small
//                  isend, whose message goes with it, or a poll other than the one that brought it
//   one of a group (irecv of several)          waits for the other members, and all before it in
//                  the batch with it
//
// Either wait ends when the batch is full, after kPatience polls of the session, and when the hub
// says that it is overdue.  A group whose members come in the order of their cells is laid into
// its parcel meanwhile (group_parcel.h); until it is whole or ended nothing else is gathered.
//
// Messages are known by the slot of their request, and each request keeps the slot of the one
// before it: so one completion speaks for all of a batch.
//
// Decides by what it is told alone.  Threads: under the hub's lock.
#include <array>
#include <cstdint>
#include <utility>

#include "plugin/base/sync.h"
#include "proxy/send/group_parcel.h"
#include "proxy/send/send_batch.h"

namespace twinpath {

// Polls of the session during which a message may be held.
inline constexpr int kPatience = 64;

class Coalescer {
 public:
  static constexpr std::uint16_t kNone = 0xffff;  // no slot

  bool empty() const { return !group_.open() && batch_.empty(); }
  // Of the last message that waits, in the batch or in the group.
  std::uint16_t last() const { return last_; }

  // --- one by itself
  // Whether a small message joins others: behind one under way, or those that go next.
  bool takes_small() const { return small_ahead_ != 0 || goes_next_ != 0; }
  // A write that small messages wait for has left, or has arrived; leave() is one, too.
  void small_left() { ++small_ahead_; }
  void small_arrived() { --small_ahead_; }
  // Its queue is gone.
  void nothing_ahead() { small_ahead_ = 0; }

  // --- the batch
  const SendBatch& batch() const { return batch_; }
  // Adds a message; `before` gets the slot of the one before it.  Whether all should leave now.
  bool add(const Outgoing& m, std::uint16_t& before) {
    batch_.add(m);
    return added(m.slot, m.meta, before);
  }
  // The same of host memory and a receive that wants a notice.
  TP_ALWAYS_INLINE bool add_plain(const std::uint8_t* data, const ProxyMemory* memory,
                                  CellView cell, CellMeta meta, std::uint32_t bytes,
                                  std::uint16_t slot, std::uint16_t& before) {
    batch_.add_plain(data, memory, cell, meta, bytes, slot);
    return added(slot, meta, before);
  }
  // A message goes by itself.  Whether it was the last of its group that others wait for.
  bool releases(CellMeta meta) {
    return meta.group() > 1 && groups_.complete(meta) && !batch_.empty();
  }
  // What waits leaves, to be posted: the slot of the last one.  Not empty.
  std::uint16_t leave() {
    goes_next_ = 0;
    ++small_ahead_;
    return std::exchange(last_, kNone);
  }
  // Behind leave(), unless that was of a group.
  SendBatch& leaving() { return batch_; }

  // --- the group whose parcel is laid as members come
  bool group_open() const { return group_.open(); }
  const GroupParcel& group() const { return group_; }
  // Nothing half done: nothing waits, and none of its members was sent before.
  bool may_begin_group(CellMeta first) const {
    return first.leads_copied_group() &&
           (static_cast<unsigned>(batch_.count()) | groups_.left(first)) == 0;
  }
  void begin_group(const std::uint8_t* cell, std::size_t stride, CellMeta first,
                   std::uint16_t block, std::uint8_t* block_data) {
    group_.begin(cell, stride, first, block, block_data);
    patience_ = 0;
  }
  // The next member, which has noted last().  Whether it was the last one: then all leave.
  TP_ALWAYS_INLINE bool add_longest(std::uint16_t slot, const void* data) {
    last_ = slot;
    return group_.add_longest(data);
  }
  bool add_member(std::uint16_t slot, const void* data, std::uint32_t bytes) {
    last_ = slot;
    return group_.add(data, bytes);
  }
  // The parcel was laid for all members and not all have come: those that have are a batch from now
  // on.  `before(slot)` and `message(slot, i)`: what their requests kept.  Returns the parcel's
  // block, which nobody needs any more.
  template <class Before, class Message>
  std::uint16_t end_group(Before&& before, Message&& message) {
    const unsigned left = group_.left(), sent = group_.sent();
    group_.end();
    groups_.set(group_.meta(0), sent == 0 ? 0 : left);
    std::array<std::uint16_t, kMaxRecvs> slots;
    std::uint16_t slot = last_;
    for (unsigned i = sent; i != 0; slot = before(slot)) slots[--i] = slot;
    for (unsigned i = 0; i != sent; ++i) batch_.add(message(slots[i], i));
    return group_.block();
  }

  // --- when
  // A poll of the session, by its number: whether what waits leaves now.  Not empty.
  bool due(std::uint64_t poll, bool overdue) {
    const bool free = !group_.open() && small_ahead_ == 0 && batch_.last().meta.group() == 1;
    const bool next = free && goes_next_ != 0 && goes_next_ != poll;
    if (free && goes_next_ == 0) goes_next_ = poll;
    return overdue || next || ++patience_ > kPatience;
  }

 private:
  TP_ALWAYS_INLINE bool added(std::uint16_t slot, CellMeta meta, std::uint16_t& before) {
    if (last_ == kNone) patience_ = 0;
    before = std::exchange(last_, slot);
    if (meta.group() > 1) {
      goes_next_ = 0;  // it waits for the others of its group, and all of the batch with it
      return groups_.complete(meta) || batch_.full();
    }
    return goes_next_ != 0 || batch_.full();
  }

  GroupParcel group_;
  std::uint16_t last_ = kNone;
  int small_ahead_ = 0;          // writes of small messages under way
  int patience_ = 0;             // polls since the batch was begun
  std::uint64_t goes_next_ = 0;  // the poll in which the way became free; 0: it did not
  GroupCount groups_;
  SendBatch batch_;
};

}  // namespace twinpath
