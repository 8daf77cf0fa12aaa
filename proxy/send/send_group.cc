// Groups whose members come in the order of their cells (group_parcel.h).
#include <mutex>

#include "proxy/send/send_comm.h"

namespace twinpath {

Status ProxySendComm::begin_group_and_leave(void* data, std::size_t bytes, int tag,
                                            const ProxyMemory* memory, Request** request) {
  if (bytes > kParcelBytes || !begin_group(ring_.cell(ring_.head()).meta()))
    return gather_and_leave(data, bytes, tag, memory, request);
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  return answer_member(data, bytes, tag, memory, request);
}

// The cells of a group come together, so all are there when the first is; else, and where anything
// else is special, its members go the way of any batch.
inline bool ProxySendComm::begin_group(CellMeta first) {
  ParcelPool* const pool = pools_[lanes_.first().rail];
  if (!coalescer_.may_begin_group(first) || ring_.used_ahead() != 0 ||
      ring_.head() + first.group() > slow_from_ || pool == nullptr || !ring_.any_credit() ||
      !ring_.see_group(first))
    return false;
  const std::uint16_t block = pool->take();
  if (block == kNoBlock) return false;
  coalescer_.begin_group(ring_.at(ring_.head()), ring_.layout().stride(), first, block,
                         pool->data(block));
  hub_->hold(*this);
  return true;
}

// A group is open: its next member, of whatever length, or something that ends it.
Status ProxySendComm::answer_member(void* data, std::size_t bytes, int tag,
                                    const ProxyMemory* memory, Request** request) {
  SendRequest* const r = bytes <= kParcelBytes ? member(tag, bytes) : nullptr;
  if (r == nullptr) return answer_checked(data, bytes, tag, memory, request);
  *request = r;
  begin_member(*r, data, bytes, memory);
  return coalescer_.add_member(slot_of(r->wr_id_), data, static_cast<std::uint32_t>(bytes))
             ? post_group()
             : Status::ok;
}

Status ProxySendComm::post_group() {
  const GroupParcel& group = coalescer_.group();
  SendRequest& last = requests_.at(coalescer_.leave());
  const Lane& lane = lanes_.first();
  const ParcelPool& pool = *pools_[lane.rail];
  last.block_ = group.block();
  last.pool_ = lane.rail;
  last.small_ = true;
  count_posted(lane, group.message_bytes());
  const std::uint8_t number = ring_.take_credit();
  maker_.fill_parcel(group.data(), group.bytes(), pool.lkey(),
                     {number, static_cast<std::uint8_t>(group.members())}, lane, wr_, sge_);
  wr_.wr_id = last.wr_id_;
  wr_.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane.qp, &wr_, &bad); error != 0) [[unlikely]]
    return post_failed(lane, sge_.length, error);
  return Status::ok;
}

Status ProxySendComm::post_group_and_leave() {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  return post_group();
}

// Its members are a batch from now on: the parcel was laid for all of them.
void ProxySendComm::end_group() {
  const std::uint64_t begin = ring_.head() - coalescer_.group().sent();
  const std::uint16_t block = coalescer_.end_group(
      [this](std::uint16_t slot) { return requests_.at(slot).before_; },
      [this, begin](std::uint16_t slot, unsigned i) {
        const SendRequest& r = requests_.at(slot);
        return Outgoing{r.data_,  r.memory_, ring_.cell(begin + i), coalescer_.group().meta(i),
                        r.bytes_, slot};
      });
  pools_[lanes_.first().rail]->give(block);
}

}  // namespace twinpath
