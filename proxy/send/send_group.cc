// Groups whose members come in the order of their cells (group_parcel.h).
#include <mutex>
#include <utility>

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
  ParcelPool* const pool = pools_[lane_.rail];
  // Nothing half done: no cell used ahead, nothing in the batch, none of its members sent before.
  const auto begun = static_cast<unsigned>(ring_.used_ahead()) |
                     static_cast<unsigned>(batch_.count()) | groups_.left(first);
  if (!first.leads_copied_group() || begun != 0 || ring_.head() + first.group() > slow_from_ ||
      pool == nullptr || !ring_.any_credit() || !ring_.see_group(first))
    return false;
  const std::uint16_t block = pool->take();
  if (block == kNoBlock) return false;
  group_.begin(ring_.at(ring_.head()), ring_.layout().stride(), first, block, pool->data(block));
  patience_ = 0;
  hub_->hold(*this);
  return true;
}

// A group is open: its next member, of whatever length, or something that ends it.
Status ProxySendComm::answer_member(void* data, std::size_t bytes, int tag,
                                    const ProxyMemory* memory, Request** request) {
  SendRequest* const r = bytes <= kParcelBytes ? member(tag, bytes) : nullptr;
  if (r == nullptr) return answer_checked(data, bytes, tag, memory, request);
  *request = r;
  begin_member(*r, slot_of(r->wr_id_), data, bytes, memory);
  return group_.add(data, static_cast<std::uint32_t>(bytes)) ? post_group() : Status::ok;
}

Status ProxySendComm::post_group() {
  SendRequest& last = requests_.at(std::exchange(batch_last_, SendRequest::kNone));
  const ParcelPool& pool = *pools_[lane_.rail];
  last.block_ = group_.block();
  last.pool_ = lane_.rail;
  last.small_ = true;
  ++small_ahead_;
  count_posted(lane_, group_.message_bytes());
  const std::uint8_t number = ring_.take_credit();
  maker_.fill_parcel(group_.data(), group_.bytes(), pool.lkey(),
                     {number, static_cast<std::uint8_t>(group_.members())}, lane_, wr_, sge_);
  wr_.wr_id = last.wr_id_;
  wr_.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane_.qp, &wr_, &bad); error != 0) [[unlikely]]
    return post_failed(lane_, sge_.length, error);
  return Status::ok;
}

Status ProxySendComm::post_group_and_leave() {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  return post_group();
}

// Its members are a batch from now on: the parcel was laid for all of them.
void ProxySendComm::end_group() {
  const unsigned left = group_.left(), sent = group_.members() - left;
  group_.end();
  pools_[lane_.rail]->give(group_.block());
  groups_.set(group_.meta(0), left == group_.members() ? 0 : left);
  std::array<std::uint16_t, kMaxRecvs> slots;
  std::uint16_t slot = batch_last_;
  for (unsigned i = sent; i != 0; slot = requests_.at(slot).before_) slots[--i] = slot;
  for (unsigned i = 0; i != sent; ++i) {
    const SendRequest& r = requests_.at(slots[i]);
    batch_.add({r.data_, r.memory_, ring_.cell(ring_.head() - sent + i), group_.meta(i), r.bytes_,
                slots[i]});
  }
}

}  // namespace twinpath
