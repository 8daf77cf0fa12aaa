// How messages get onto queues: at once, held and then as a batch, or in pieces.
#include <cstring>

#include "plugin/base/clock.h"
#include "proxy/send/send_comm.h"

namespace twinpath {

Status ProxySendComm::send_now(SendRequest& request, const Outgoing& m) {
  const bool time = ring_.head() > time_at_;
  if (time) {
    time_at_ = ring_.head() +
               (m.bytes > counters::kSmallBytes ? counters::kTimedLarge : counters::kTimedSmall);
    set_slow_from();
  }
  if (!lanes_.one()) [[unlikely]] {
    const Lanes::Range over = lanes_.choose(m.bytes, core_->expected);
    if (over.count > 1) {
      // It goes by itself, but the others of its group need not wait for it.
      const bool release = coalescer_.releases(m.meta);
      if (time) begin_timing(request);
      TP_TRY(post_striped(request, m, over));
      return release ? post_batch() : Status::ok;
    }
  }
  if (m.meta.group() > 1 || (coalescer_.takes_small() && m.small())) return gather(request, m);
  if (time) begin_timing(request);
  const Lane& lane = lanes_.next_lane();
  note_leg(lane, m.bytes);
  if (maker_.splits(m.bytes) || m.meta.no_completion())
    return post_piece(request, m, WriteMaker::whole(m), lane);
  return post_whole(request, m, lane);
}

bool ProxySendComm::post_held(bool overdue) {
  if (link_->halted()) return false;
  if (staged_ != nullptr && staged_->busy()) post_staged();
  if (!coalescer_.empty() && coalescer_.due(hub_->polls(), overdue)) {
    if (coalescer_.group_open()) end_group();
    if (!coalescer_.batch().empty()) (void)post_batch();
  }
  return !link_->halted() && (!coalescer_.empty() || (staged_ != nullptr && staged_->busy()));
}

SendBatch::Parcel ProxySendComm::take_parcel(SendRequest& last, int rail) {
  ParcelPool* pool = pools_[static_cast<std::size_t>(rail)];
  if (pool == nullptr || !coalescer_.batch().wants_parcel() || !ring_.find_credit()) return {};
  const std::uint16_t block = pool->take();
  if (block == kNoBlock) return {};
  last.block_ = block;
  last.pool_ = static_cast<std::uint8_t>(rail);
  return {pool->data(block), pool->lkey(), ring_.take_credit()};
}

Status ProxySendComm::post_batch() {
  const Lane& lane = lanes_.next_lane();
  SendRequest& last = requests_.at(coalescer_.leave());
  SendBatch& batch = coalescer_.leaving();
  last.small_ = true;
  count_posted(lane, batch.bytes());
  const int error = batch.post(lane, maker_, take_parcel(last, lane.rail), last.wr_id_);
  return error == 0 ? Status::ok : post_failed(lane, last.bytes_, error);
}

Status ProxySendComm::post_piece(const SendRequest& request, const Outgoing& m,
                                 const WriteMaker::Piece& piece, const Lane& lane) {
  std::array<ibv_send_wr, 2> wr;
  std::array<ibv_sge, 2> sge;
  std::uint32_t size = 0;
  const int count = maker_.count(m, piece, lane);
  ibv_send_wr* last = maker_.write(m, piece, lane, count, wr.data(), sge.data(), size);
  count_posted(lane, piece.bytes);
  wr[0].wr_id = last->wr_id = request.wr_id_;
  last->send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane.qp, wr.data(), &bad); error != 0) [[unlikely]]
    return post_failed(lane, piece.bytes, error);
  return Status::ok;
}

Status ProxySendComm::post_striped(SendRequest& request, const Outgoing& m, Lanes::Range over) {
  const StripePlan plan = lanes_.cut(m.bytes, over);
  request.set_pending(plan.count);
  const std::int64_t now = lanes_.measures(m.bytes) ? now_ns() : 0;
  if (now != 0) request.special_ |= SendRequest::kPaced;
  if (flights_ != nullptr && flights_->open()) [[unlikely]]
    request.special_ |= SendRequest::kWatched;
  for (int i = 0; i < plan.count; ++i) {
    const Chunk& chunk = plan.chunks[static_cast<std::size_t>(i)];
    const auto lane = static_cast<std::size_t>(over.first + chunk.lane);
    if (now != 0) lanes_.posted(lane, chunk.bytes, now);
    note_leg(lanes_[lane], chunk.bytes);
    TP_TRY(post_piece(request, m,
                      {chunk.offset, static_cast<std::uint32_t>(chunk.bytes),
                       static_cast<std::uint32_t>(plan.count), false},
                      lanes_[lane]));
  }
  return Status::ok;
}

Status ProxySendComm::tell_used() {
  ring_.report().told(ring_.head());
  set_slow_from();
  auto word = static_cast<std::uint32_t>(ring_.head());
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
    std::uint8_t* own = ring_memory_->data() + ring_.layout().ring_bytes();
    std::memcpy(own, &word, sizeof word);
    sge.addr = reinterpret_cast<std::uintptr_t>(own);
    sge.lkey = ring_memory_->lkey(lane.rail);
    wr.send_flags = IBV_SEND_SIGNALED;
  }
  wr.wr.rdma.remote_addr = maker_.remote_box() + kUsedAt;
  wr.wr.rdma.rkey = maker_.box_rkey(lane);
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane.qp, &wr, &bad); error != 0)
    return post_failed(lane, sizeof word, error);
  return Status::ok;
}

Status ProxySendComm::post_failed(const Lane& lane, std::size_t bytes, int error) {
  link_->fail("cannot post a write of %zu bytes on QP %u: %s (errno %d)", bytes, lane.qp->qp_num,
              std::strerror(error), error);
  return Status::system;
}

// While queues are replaced lanes still name those that are gone, and completions of these come.
int ProxySendComm::lane_of(const ibv_wc& wc) const {
  return link_->halted() ? -1 : lanes_.find(wc.qp_num, hub_->polled()->cq());
}

void ProxySendComm::piece_arrived(const ibv_wc& wc) {
  const int lane = lane_of(wc);
  if (lane < 0) return;
  lanes_.arrived(static_cast<std::size_t>(lane), now_ns(),
                 [this](const Lane& of, bool slow, std::uint32_t permille) {
                   link_->tell_pace(of.rail, of.remote_rail, slow, permille);
                 });
}

}  // namespace twinpath
