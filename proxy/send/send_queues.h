#pragma once
// The queues that a sender writes on: which of them a message takes (lanes.h), the work requests
// that carry it (outgoing.h), and what the counters say of each rail.
//
// Whatever is posted is told once; where the adapter refuses, failed() says what.  `number`: of
// messages so far, the one that is posted included.
//
// Threads: under the hub's lock.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proxy/queues/registered_buffer.h"
#include "proxy/send/group_parcel.h"
#include "proxy/send/lanes.h"
#include "proxy/send/send_batch.h"
#include "proxy/send/send_trace.h"

namespace twinpath {

class SendQueues {
 public:
  // `most_bytes` of one message.  `wr_base`: of the wr_ids of this sender's writes.
  SendQueues(Lanes lanes, const WriteMaker& maker, std::uint64_t wr_base, std::size_t most_bytes)
      : lanes_(std::move(lanes)), maker_(maker), wr_base_(wr_base), most_bytes_(most_bytes) {
    wr_.sg_list = &sge_;
    wr_.num_sge = 1;
    wr_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  }
  SendQueues(const SendQueues&) = delete;
  SendQueues& operator=(const SendQueues&) = delete;

  // As Lanes::use.
  void use(std::vector<Lane> lanes, int rails) {
    lanes_.use(std::move(lanes), rails);
    plain_up_to_ = lanes_.one() ? std::min(most_bytes_, maker_.split_above()) : 0;
  }
  Lanes& lanes() { return lanes_; }
  const Lane& first() const { return lanes_.first(); }
  // Of queue pairs that others use, too.
  bool shared() const { return lanes_.shared(); }
  // Whether these take what one call may post.
  bool room() const { return !shared() || lanes_.room(); }
  bool splits(std::size_t bytes) const { return maker_.splits(bytes); }

  // Messages of up to this many bytes may go by lay_plain() and post_plain(): on one queue there is
  // nothing to choose.
  std::size_t plain_up_to() const { return plain_up_to_; }
  // One of host memory for a receive that wants a notice, over the only queue: in two steps, for
  // what is between them then keeps nothing of the message but its length.
  TP_ALWAYS_INLINE void lay_plain(const void* data, std::size_t bytes, const ProxyMemory* memory,
                                  CellView cell, CellMeta meta, std::uint64_t wr_id) {
    const Lane& lane = lanes_.first();
    sge_.addr = reinterpret_cast<std::uintptr_t>(data);
    sge_.length = static_cast<std::uint32_t>(bytes);
    sge_.lkey = memory->lkey(lane.rail);
    wr_.num_sge = bytes != 0 ? 1 : 0;
    wr_.wr_id = wr_id;
    wr_.imm_data = htonl(message_immediate(meta.receive(), 1));
    constexpr unsigned kInline = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    wr_.send_flags = bytes <= lane.inline_bytes ? kInline : unsigned{IBV_SEND_SIGNALED};
    wr_.wr.rdma.remote_addr = cell.address();
    wr_.wr.rdma.rkey = cell.rkey(lane.cell_key);
  }
  TP_ALWAYS_INLINE bool post_plain(std::size_t bytes, std::uint64_t number) {
    const Lane& lane = lanes_.first();
    count(lane, bytes, number);
    const int error = post(lane, wr_);
    return posted(lane, sge_.length, error);
  }
  // Any that takes one work request and wants a notice.
  bool post_whole(const Outgoing& m, const Lane& lane, std::uint64_t wr_id, std::uint64_t number) {
    count(lane, m.bytes, number);
    WriteMaker::fill(m, WriteMaker::whole(m), lane, wr_, sge_);
    wr_.wr_id = wr_id;
    wr_.imm_data = htonl(message_immediate(m.meta.receive(), 1));
    wr_.send_flags |= IBV_SEND_SIGNALED;
    return posted(lane, m.bytes, post(lane, wr_));
  }
  // A part of any, on a queue.
  bool post_piece(const Outgoing& m, const WriteMaker::Piece& piece, const Lane& lane,
                  std::uint64_t wr_id, std::uint64_t number);
  // One cut over several; its pieces are pending from then on.
  bool post_striped(SendRequest& r, const Outgoing& m, Lanes::Range over, SendTrace& trace,
                    std::uint64_t number);
  // All of a batch, the last of which is that long.
  bool post_batch(SendBatch& batch, const Lane& lane, const SendBatch::Parcel& parcel,
                  std::uint64_t wr_id, std::size_t last_bytes, std::uint64_t number) {
    count(lane, batch.bytes(), number);
    return posted(lane, last_bytes, batch.post(lane, maker_, parcel, wr_id));
  }
  // A group in its parcel, over the first queue.
  bool post_group(const GroupParcel& group, std::uint32_t lkey, std::uint8_t parcel,
                  std::uint64_t wr_id, std::uint64_t number) {
    const Lane& lane = lanes_.first();
    count(lane, group.message_bytes(), number);
    maker_.fill_parcel(group.data(), group.bytes(), lkey,
                       {parcel, static_cast<std::uint8_t>(group.members())}, lane, wr_, sge_);
    wr_.wr_id = wr_id;
    wr_.send_flags = IBV_SEND_SIGNALED;
    return posted(lane, sge_.length, post(lane, wr_));
  }
  // Tells the receiver that all cells before `head` are used.  `own` at `at`: where that may lie
  // for adapters that take too little inline.
  bool tell_used(std::uint64_t head, const RegisteredBuffer& own, std::size_t at);

  // What the adapter refused last.
  struct Failed {
    std::uint32_t queue = 0;
    std::size_t bytes = 0;
    int error = 0;
  };
  const Failed& failed() const { return failed_; }

 private:
  // Each read once: after an atomic store the compiler would read them again.
  TP_ALWAYS_INLINE void count(const Lane& lane, std::uint64_t bytes, std::uint64_t number) {
    if constexpr (!counters::kConnectionCounts) return;
    counters::Rail& to = *lane.counts;
    to.messages.set(number);
    to.bytes.add(bytes);
  }
  TP_ALWAYS_INLINE static int post(const Lane& lane, ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(lane.qp, &wr, &bad);
  }
  TP_ALWAYS_INLINE bool posted(const Lane& lane, std::size_t bytes, int error) {
    if (error == 0) [[likely]]
      return true;
    failed_ = {lane.qp->qp_num, bytes, error};
    return false;
  }

  Lanes lanes_;
  const WriteMaker maker_;
  const std::uint64_t wr_base_;
  const std::size_t most_bytes_;
  std::size_t plain_up_to_ = 0;
  ibv_send_wr wr_{};  // of a message that goes whole
  ibv_sge sge_{};
  Failed failed_;
};

}  // namespace twinpath
