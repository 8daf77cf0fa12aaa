#pragma once
// What the sender's writes announce: chunks of messages, groups, and parcels.  Counts them into the
// receives that await them, and passes on to the GPU what has landed in mirrors.
//
// The peer may not be believed: an immediate that fits no receive posted here, or one too much, is
// refused, and nobody's memory is written to for its sake.  What it means for the connection is the
// comm's affair, and so are work requests and queues.
//
// Threads: under the hub's lock.
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/base/counters.h"
#include "proxy/queues/slot_pool.h"
#include "proxy/receive/cts_writer.h"
#include "proxy/receive/recv_request.h"
#include "proxy/receive/staged_recv.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

class Arrivals {
 public:
  using Requests = SlotPool<RecvRequest, kRecvSlots>;

  // `box`: kBoxBytes that the sender writes to.  It and the counts outlive this.
  Arrivals(const std::uint8_t* box, counters::Connection& counts) : box_(box), counts_(counts) {}
  // Queue `queue` brings its data over that rail.
  void serve(std::size_t queue, std::size_t rail) {
    rail_bit_[queue] = 1u << rail;
    rail_counts_[queue] = &counts_.rails[rail];
  }

  Requests& requests() { return requests_; }
  const Requests& requests() const { return requests_; }
  // Parcels that were read, as cells say it.
  std::uint8_t frontier() const { return parcels_.frontier(); }
  // Rails that brought data which the adapter laid there itself, since forget_carried(): a bit
  // each.
  std::uint32_t carried() const { return carried_; }
  void forget_carried() { carried_ = 0; }

  // A message in one piece for a plain receive, nearly always.  False: take() will know.
  TP_ALWAYS_INLINE bool take_whole(CellMeta which, std::uint32_t bytes, std::size_t queue,
                                   CtsWriter& cells) {
    RecvRequest* const r = expecting(which);
    if (r == nullptr) [[unlikely]]
      return false;
    RecvRequest::Sub& sub = r->subs_[which.sub()];
    if (sub.state.expected != 0 || bytes > sub.capacity || r->staged_ != 0) [[unlikely]]
      return false;
    sub.state.become(RecvRequest::Sub::State::whole());
    r->sizes_[which.sub()] = bytes;
    if (bytes > 0) carried_ |= rail_bit_[queue];
    counters::Rail& rail = *rail_counts_[queue];
    if constexpr (counters::kConnectionCounts) rail.bytes.add(bytes);
    sub_complete(*r, rail, cells);
    return true;
  }
  // Any immediate that came with so many bytes; `cells`: those of receives that are over are used.
  // False when it makes no sense here.
  TP_APART bool take(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells);
  // The same of a completion that announces nothing.
  bool unexpected(std::uint32_t bits);
  // What was wrong with the first that was refused, or failed to be copied on.
  const std::string& why() const { return why_; }

  // --- through host memory
  // The first one is taken; another stays its owner's, to end without the lock.
  void stage_into(std::unique_ptr<StagedReceives>& made) {
    if (staged_ == nullptr) staged_ = std::move(made);
  }
  // Has a part land in the mirror of its memory.
  void stage(RecvRequest& request, std::size_t index, const ProxyMemory& memory);
  // Whether something has landed since copy_on().
  bool landed() const { return landed_; }
  bool copying() const { return staged_ != nullptr && staged_->busy(); }
  // Whether a copy reads out of the mirror of a receive of which more is to come.
  bool copying_parts() const { return staged_ != nullptr && staged_->copying_parts(); }
  // Goes on with copies; false when one fails.
  bool copy_on(CtsWriter& cells);

  // Whether receives that the peer was told of wait for data.  What comes for memory that was given
  // back, as NCCL does before it closes, nobody waits for.
  bool expects_data();
  // What is incomplete counts as not arrived: it will come again, by other queues.  Not while
  // copying_parts().
  void restart(HeldState& held);
  // Parcels are copied under the lock.  One that comes from now on for a buffer in `memory` is
  // refused, unless `registered(address, bytes)`: as an adapter refuses the key.
  template <class Registered>
  void give_up(const ProxyMemory& memory, Registered&& registered) {
    for_incomplete([&](RecvRequest& r, unsigned i) {
      RecvRequest::Sub& sub = r.subs_[i];
      // Nothing else says which registration it was received under; one is as good as another.
      if (sub.capacity != 0 && memory.covers(sub.to, sub.capacity) &&
          !registered(sub.to, sub.capacity))
        sub.state.copied = RecvRequest::Copied::gone;
    });
  }
  // Calls `f` with how many chunks of each part have come, in an order that stays.
  template <class F>
  void for_counts(F&& f) {
    for (std::size_t slot = 0; requests_.made(slot); ++slot)
      for (const RecvRequest::Sub& sub : requests_.at(slot).subs_) f(sub.state.arrived);
  }

 private:
  // The request in that slot if it waits for that part, else null.
  RecvRequest* expecting(CellMeta which) {
    if (!requests_.made(which.slot())) [[unlikely]]
      return nullptr;
    RecvRequest& r = requests_.at(which.slot());
    return r.left() != 0 && r.bits_ == (which.receive() & ~kSubBits) && which.sub() < r.count_
               ? &r
               : nullptr;
  }
  // `rail`: that brought its last part; any, of one that was staged.
  TP_ALWAYS_INLINE void sub_complete(RecvRequest& r, counters::Rail& rail, CtsWriter& cells,
                                     unsigned subs = 1) {
    const unsigned left = r.left() - subs;
    r.set_left(left);
    if (left != 0) return;
    cells.used(r.first_cell_, r.count_);
    if constexpr (counters::kConnectionCounts) rail.messages.set(cells.ended());
  }
  // Calls `f(request, index)` for the parts of receives that are not over.
  template <class F>
  void for_incomplete(F&& f) {
    for (std::size_t slot = 0; requests_.made(slot); ++slot) {
      RecvRequest& r = requests_.at(slot);
      if (r.left() == 0) continue;
      for (unsigned i = 0; i != r.count_; ++i) f(r, i);
    }
  }
  bool take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells);
  bool take_group(RecvRequest& request, const Immediate& imm, std::uint32_t bytes, int queue,
                  CtsWriter& cells);
  bool take_parcel(std::uint32_t bits, std::uint32_t bytes, int queue, CtsWriter& cells);
  unsigned take_in_order(RecvRequest& request, const std::uint8_t* entry, const std::uint8_t* data,
                         unsigned most);
  // Whether the data of that part had all arrived, in this or the last use of its request.
  bool came_before(CellMeta which);
  // More of a staged part has arrived, to be copied on; false when it is too much.
  bool land(RecvRequest& request, std::size_t index, bool in_order);
  // A parcel has brought a whole message; false when none may or it is not awaited, but for those
  // that go straight to their buffer.
  bool land_parcel(RecvRequest& request, std::size_t index, const std::uint8_t* from,
                   std::uint32_t bytes);
  // Says why; false.
  TP_APART bool refuse(const char* format, ...) __attribute__((format(printf, 2, 3)));

  const std::uint8_t* const box_;
  counters::Connection& counts_;
  std::uint32_t carried_ = 0;
  bool landed_ = false;
  ParcelFrontier parcels_;
  Requests requests_;
  std::array<std::uint32_t, kMaxQps> rail_bit_{};       // of each queue
  std::array<counters::Rail*, kMaxQps> rail_counts_{};  // of each queue
  std::unique_ptr<StagedReceives> staged_;              // made with the first memory to be staged
  std::string why_;
};

}  // namespace twinpath
