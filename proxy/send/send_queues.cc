#include "proxy/send/send_queues.h"

#include <cstring>

#include "plugin/base/clock.h"

namespace twinpath {

bool SendQueues::post_piece(const Outgoing& m, const WriteMaker::Piece& piece, const Lane& lane,
                            std::uint64_t wr_id, std::uint64_t number) {
  std::array<ibv_send_wr, 2> wr;
  std::array<ibv_sge, 2> sge;
  std::uint32_t size = 0;
  const int parts = maker_.count(m, piece, lane);
  ibv_send_wr* last = maker_.write(m, piece, lane, parts, wr.data(), sge.data(), size);
  count(lane, piece.bytes, number);
  wr[0].wr_id = last->wr_id = wr_id;
  last->send_flags |= IBV_SEND_SIGNALED;
  return posted(lane, piece.bytes, post(lane, wr[0]));
}

bool SendQueues::post_striped(SendRequest& r, const Outgoing& m, Lanes::Range over,
                              SendTrace& trace, std::uint64_t number) {
  const StripePlan plan = lanes_.cut(m.bytes, over);
  r.set_pending(plan.count);
  const std::int64_t now = lanes_.measures(m.bytes) ? now_ns() : 0;
  if (now != 0) r.mark(SendRequest::kPaced);
  trace.cut(r);
  for (int i = 0; i < plan.count; ++i) {
    const Chunk& chunk = plan.chunks[static_cast<std::size_t>(i)];
    const auto at = static_cast<std::size_t>(over.first + chunk.lane);
    const Lane& lane = lanes_[at];
    if (now != 0) lanes_.posted(at, chunk.bytes, now);
    trace.leaves(lane, chunk.bytes);
    if (!post_piece(m,
                    {chunk.offset, static_cast<std::uint32_t>(chunk.bytes),
                     static_cast<std::uint32_t>(plan.count), false},
                    lane, r.wr_id(), number))
      return false;
  }
  return true;
}

bool SendQueues::tell_used(std::uint64_t head, const RegisteredBuffer& own, std::size_t at) {
  auto word = static_cast<std::uint32_t>(head);
  const Lane& lane = lanes_.first();
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(&word), sizeof word, 0};
  ibv_send_wr wr{};
  wr.wr_id =
      wr_base_ ^ std::uint64_t{static_cast<int>(WrKind::send_data) ^ static_cast<int>(WrKind::used)}
                     << 32;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  if (lane.inline_bytes < sizeof word) {
    std::uint8_t* to = own.data() + at;
    std::memcpy(to, &word, sizeof word);
    sge.addr = reinterpret_cast<std::uintptr_t>(to);
    sge.lkey = own.lkey(lane.rail);
    wr.send_flags = IBV_SEND_SIGNALED;
  }
  wr.wr.rdma.remote_addr = maker_.remote_box() + kUsedAt;
  wr.wr.rdma.rkey = maker_.box_rkey(lane);
  return posted(lane, sizeof word, post(lane, wr));
}

}  // namespace twinpath
