// The way that isend takes nearly always (proxy/README.md); whatever is different is in answer().
#include <arpa/inet.h>

#include <mutex>

#include "proxy/send/send_comm.h"

namespace twinpath {
namespace {
constexpr unsigned kInlineSignalled = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
}  // namespace

// The short way, of host memory over one queue to the next cell.  Here stands that of a group's
// member; all calls are the last thing it does, so that it keeps nothing over one.
Status ProxySendComm::isend(void* data, std::size_t bytes, int tag, Memory* memory,
                            Request** request) {
  const auto* mine = static_cast<const ProxyMemory*>(memory);
  if (mine == nullptr || !mine->plainly_covers(data, bytes, device_)) [[unlikely]]
    return isend_any(data, bytes, tag, mine, false, request);
  if (!hub_->lock.take()) [[unlikely]]
    return isend_waiting(data, bytes, tag, mine, request);
  if (bytes == kParcelBytes) {
    const std::uint16_t slot = requests_.next();
    if (SendRequest* const r = member(tag, kParcelBytes); r != nullptr) {
      *request = r;
      begin_member(*r, data, kParcelBytes, mine);
      if (coalescer_.add_longest(slot, data)) return post_group_and_leave();
      hub_->lock.unlock();
      return Status::ok;
    }
  }
  return isend_and_leave(data, bytes, tag, mine, request);
}

Status ProxySendComm::isend_waiting(void* data, std::size_t bytes, int tag,
                                    const ProxyMemory* memory, Request** request) {
  hub_->lock.lock();
  return isend_and_leave(data, bytes, tag, memory, request);
}

// That of a message by itself, in the same manner: what is not for it is in answer_and_leave().
Status ProxySendComm::isend_and_leave(void* data, std::size_t bytes, int tag,
                                      const ProxyMemory* memory, Request** request) {
  if (coalescer_.group_open() || link_->halted() || !ring_.ready()) [[unlikely]]
    return answer_and_leave(data, bytes, tag, memory, request);
  const CellView cell = ring_.cell(ring_.head());
  const CellMeta meta = cell.meta();
  if (bytes > short_way_ || cell.tag() != tag || bytes > cell.bytes() || ring_.head() >= slow_from_)
      [[unlikely]]
    return answer_and_leave(data, bytes, tag, memory, request);
  if (!meta.lone()) return begin_group_and_leave(data, bytes, tag, memory, request);
  if (coalescer_.takes_small() && bytes <= kParcelBytes && meta.copyable())
    return gather_and_leave(data, bytes, tag, memory, request);
  SendRequest* const r = requests_.take_again();
  if (r == nullptr) [[unlikely]]
    return answer_and_leave(data, bytes, tag, memory, request);
  *request = r;
  r->begin(data, bytes, memory, ring_.head());
  const Lane& lane = lanes_.first();
  sge_.addr = reinterpret_cast<std::uintptr_t>(data);
  sge_.length = static_cast<std::uint32_t>(bytes);
  sge_.lkey = memory->lkey(lane.rail);
  wr_.num_sge = bytes != 0 ? 1 : 0;
  wr_.wr_id = r->wr_id_;
  wr_.imm_data = htonl(message_immediate(meta.receive(), 1));
  wr_.send_flags = bytes <= lane.inline_bytes ? kInlineSignalled : unsigned{IBV_SEND_SIGNALED};
  wr_.wr.rdma.remote_addr = cell.address();
  wr_.wr.rdma.rkey = cell.rkey(lane.cell_key);
  if (bytes <= kParcelBytes) {
    r->small_ = true;
    coalescer_.small_left();
  }
  ring_.use_head();
  count_posted(lane, bytes);
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane.qp, &wr_, &bad); error != 0) [[unlikely]]
    return post_failed_and_leave(error);
  hub_->lock.unlock();
  return Status::ok;
}

Status ProxySendComm::post_failed_and_leave(int error) {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  return post_failed(lanes_.first(), sge_.length, error);
}

// Plain memory all the same.
Status ProxySendComm::answer_and_leave(void* data, std::size_t bytes, int tag,
                                       const ProxyMemory* memory, Request** request) {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  if (coalescer_.group_open()) return answer_member(data, bytes, tag, memory, request);
  return answer_checked(data, bytes, tag, memory, request);
}

// For the next cell, with which it may go: company is waited for.
Status ProxySendComm::gather_and_leave(void* data, std::size_t bytes, int tag,
                                       const ProxyMemory* memory, Request** request) {
  const CellView cell = ring_.cell(ring_.head());
  const CellMeta meta = cell.meta();
  if (!meta.valid() || meta.no_completion()) [[unlikely]]
    return answer_and_leave(data, bytes, tag, memory, request);
  const std::uint16_t slot = requests_.next();
  SendRequest* const r = requests_.take_again();
  if (r == nullptr) [[unlikely]]
    return answer_and_leave(data, bytes, tag, memory, request);
  *request = r;
  r->begin(data, bytes, memory, ring_.head());
  ring_.use_head();
  if (coalescer_.add_plain(static_cast<const std::uint8_t*>(data), memory, cell, meta,
                           static_cast<std::uint32_t>(bytes), slot, r->before_))
    return post_batch_and_leave();
  hub_->hold(*this);
  hub_->lock.unlock();
  return Status::ok;
}

Status ProxySendComm::post_batch_and_leave() {
  std::lock_guard hold(hub_->lock, std::adopt_lock);
  return post_batch();
}

Status ProxySendComm::answer_checked(void* data, std::size_t bytes, int tag,
                                     const ProxyMemory* memory, Request** request) {
  *request = nullptr;
  Special special;
  TP_TRY(check(data, bytes, memory, special.stage));
  return answer(data, bytes, tag, memory, special, request);
}

}  // namespace twinpath
