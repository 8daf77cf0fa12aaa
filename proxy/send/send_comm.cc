#include "proxy/send/send_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "plugin/base/log.h"
#include "proxy/wire/parcel.h"

namespace twinpath {

ProxySendComm::ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : core_(std::move(core)),
      device_(device),
      ring_(std::move(parts.ring)),
      layout_(parts.layout),
      link_(std::move(parts.link)),
      plan_(parts.plan),
      batch_(*ring_, layout_, parts.remote_ring + layout_.ring_bytes(), parts.remote_rkeys) {
  rails_ = std::max(static_cast<int>(link_->set().rails().size()), layout_.rails());
  for (int i = kSendSlots; i-- > 0;) {
    SendRequest& r = requests_[static_cast<std::size_t>(i)];
    r.comm_ = this;
    r.slot_ = static_cast<std::uint16_t>(i);
    free_[static_cast<std::size_t>(free_count_++)] = r.slot_;
  }
  for (int q = 0; q < link_->queue_count(); ++q) {
    const auto& near = parts.near_rails;
    if (near.empty() || std::find(near.begin(), near.end(), link_->queue(q).rail) != near.end())
      whole_[static_cast<std::size_t>(whole_count_++)] = static_cast<std::uint8_t>(q);
  }
  if (whole_count_ == 0) whole_count_ = 1;  // fewer queues than rails: the first
  link_->hub().attach(link_->set().comm_id(), this);
}

ProxySendComm::~ProxySendComm() {
  // From here on completions find nobody; then the queues go, then what they wrote to.
  link_->hub().attach(link_->set().comm_id(), nullptr);
  {
    std::lock_guard hold(link_->hub().lock);
    link_->hub().drop_held(*this);
  }
  link_.reset();
}

Status ProxySendComm::isend(void* data, std::size_t bytes, int tag, Memory* memory,
                            Request** request) {
  *request = nullptr;
  const auto* mine = static_cast<const ProxyMemory*>(memory);
  if (bytes > 0 && (mine == nullptr || mine->device != device_ || !mine->covers(data, bytes))) {
    TP_WARN(
        "isend of %zu bytes at %p to %s: the buffer is not inside its registration on this device "
        "(%zu bytes at 0x%llx)",
        bytes, data, link_->peer().text.c_str(), mine == nullptr ? 0 : mine->length,
        mine == nullptr ? 0ULL : static_cast<unsigned long long>(mine->address));
    return Status::bad_argument;
  }
  bool stage = bytes > 0 && mine->type == MemoryType::cuda && !plan_.direct(bytes);
  if (bytes > 0 && (stage ? mine->mirror == nullptr : !mine->direct))
    return not_reachable("isend", link_->peer().text, *mine, bytes);
  std::lock_guard hold(link_->hub().lock);
  if (link_->broken()) return Status::remote;
  std::uint64_t seq = 0;
  const bool found = free_count_ > 0 && find_cell(tag, seq);
  if (!found) {
    (void)link_->poll();
    // Waiting for the peer's cell counts: it must not wait for a peer that has gone.
    link_->waited(kSendSlots - free_count_ + 1);
    return link_->broken() ? Status::remote : Status::again;
  }
  Cts cts;
  if (!layout_.read(ring_->data() + layout_.offset(seq), cts)) {
    link_->fail("it wrote a clear-to-send cell that makes no sense (number %llu)",
                static_cast<unsigned long long>(seq));
    return Status::remote;
  }
  if (bytes > cts.bytes) {
    warn_truncated(bytes, cts.bytes);
    bytes = cts.bytes;
    stage = stage && bytes > 0;
  }
  consume_cell(seq);
  SendRequest& r = requests_[free_[static_cast<std::size_t>(--free_count_)]];
  r.bytes_ = bytes;
  r.pending_ = 0;
  r.active_ = true;
  ++r.generation_;
  r.chunked_ = false;
  r.before_ = SendRequest::kNone;
  const CompletionHub::CommId id = link_->set().comm_id();
  const Outgoing message{
      encode(WrId{id.index, id.epoch, WrKind::send_data, r.slot_, r.generation_}),
      seq,
      cts,
      static_cast<const std::uint8_t*>(data),
      bytes,
      mine};
  if (stage) {
    send_staged(r, message);
    *request = &r;
    return Status::ok;
  }
  int first = 0, lanes = 1;
  if (!batch_.empty() && bytes <= static_cast<std::size_t>(kParcelBytes))
    first = batch_.queue();  // small ones keep together
  else
    choose_lanes(bytes, first, lanes);
  if (lanes > 1) {
    TP_TRY(post_batch());
    TP_TRY(post_striped(r, message, first, lanes));
  } else {
    TP_TRY(join_batch(r, message, first));
  }
  *request = &r;
  return Status::ok;
}

bool ProxySendComm::find_cell(int tag, std::uint64_t& seq) {
  for (seq = head_; seq < head_ + kCtsCells; ++seq) {
    if (used_[cts_place(seq)]) continue;
    std::uint8_t* cell = ring_->data() + layout_.offset(seq);
    if (!layout_.ready(cell, seq)) return false;
    if (CtsLayout::tag(cell) == tag) return true;
  }
  return false;
}

void ProxySendComm::consume_cell(std::uint64_t seq) {
  used_[cts_place(seq)] = true;
  while (used_[cts_place(head_)]) {
    used_[cts_place(head_)] = false;
    ++head_;
  }
}

void ProxySendComm::warn_truncated(std::size_t sent, std::size_t posted) {
  if (warned_truncated_) return;
  warned_truncated_ = true;
  TP_WARN(
      "a send of %zu bytes to %s met a receive of %zu bytes and was cut to it (further ones "
      "are not reported); ranks disagree on the message size",
      sent, link_->peer().text.c_str(), posted);
}

void ProxySendComm::choose_lanes(std::size_t bytes, int& first, int& count) {
  const int queues = link_->queue_count();
  const Config& config = core_->devices->config();
  first = 0;
  count = 1;
  if (queues == 1) return;
  if (config.ib_split_data_on_qps) {
    count = queues;
  } else if (rails_ > 1 && bytes >= config.stripe_min.n) {
    // One queue per rail, the next set each time: queue q lies on rail q % rails on both ends, so
    // any `rails_` queues in a row (with wrap-around at a multiple) cover all of them.
    count = std::min(rails_, queues);
    first = next_queue_ / count * count;
    if (first + count > queues) first = 0;
    next_queue_ = (first + count) % queues;
  } else {
    first = next_queue();
  }
}

int ProxySendComm::next_queue() {
  const int queue = whole_[static_cast<std::size_t>(next_whole_)];
  next_whole_ = (next_whole_ + 1) % whole_count_;
  return queue;
}

Status ProxySendComm::post_failed(const Queue& queue, std::size_t bytes, int error) {
  link_->fail("cannot post a write of %zu bytes on QP %u: %s (errno %d)", bytes, queue.qp->qp_num,
              std::strerror(error), error);
  return Status::system;
}

Status ProxySendComm::join_batch(SendRequest& request, const Outgoing& message, int queue) {
  if (!batch_.empty() && batch_.queue() != queue) TP_TRY(post_batch());
  batch_.add(queue, message);
  request.pending_ = 1;
  request.before_ = batch_last_;
  batch_last_ = request.slot_;
  const bool alone = free_count_ == kSendSlots - 1;
  if (alone || batch_.full()) return post_batch();
  link_->hub().hold(*this);
  return Status::ok;
}

void ProxySendComm::post_held() {
  if (link_->broken()) return;
  if (staged_ != nullptr && staged_->busy())
    post_staged();
  else
    (void)post_batch();
}

Status ProxySendComm::post_batch() {
  if (batch_.empty()) return Status::ok;
  const std::size_t bytes = requests_[batch_last_].bytes_;
  batch_last_ = SendRequest::kNone;
  Queue& queue = link_->queue(batch_.queue());
  const int error = batch_.post(queue);
  return error == 0 ? Status::ok : post_failed(queue, bytes, error);
}

Status ProxySendComm::post_striped(SendRequest& request, const Outgoing& message, int first,
                                   int lanes) {
  std::array<std::uint32_t, kMaxQps> weights;
  for (int i = 0; i < lanes; ++i)
    weights[static_cast<std::size_t>(i)] = link_->queue(first + i).speed_mbps;
  const StripePlan plan =
      plan_stripes(message.bytes, {weights.data(), static_cast<std::size_t>(lanes)});
  const Cts& cts = message.cts;
  const Immediate imm{cts.slot, cts.sub, cts.generation, static_cast<std::uint8_t>(plan.count)};
  for (int i = 0; i < plan.count; ++i) {
    const Chunk& chunk = plan.chunks[static_cast<std::size_t>(i)];
    Queue& queue = link_->queue(first + chunk.lane);
    ibv_sge sge{};
    ibv_send_wr wr = data_write(message, queue, chunk.offset, chunk.bytes, encode(imm), sge);
    wr.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(queue.qp.get(), &wr, &bad); error != 0)
      return post_failed(queue, chunk.bytes, error);
    ++request.pending_;
  }
  return Status::ok;
}

void ProxySendComm::on_completion(const WrId& id, const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) {
    link_->fail_completion(id, wc);
    return;
  }
  if (id.kind != WrKind::send_data || id.slot >= kSendSlots) return;
  const SendRequest& last = requests_[id.slot];
  if (!last.active_ || last.generation_ != id.generation) return;
  if (last.chunked_) --staged_writes_;
  // Those before it in its batch have no completion of their own, and stay active until now.
  for (std::uint16_t slot = id.slot; slot != SendRequest::kNone;) {
    SendRequest& r = requests_[slot];
    if (r.pending_ > 0) --r.pending_;
    slot = std::exchange(r.before_, SendRequest::kNone);
  }
}

Status SendRequest::test(Completion& out) { return comm_->test(*this, out); }

Status ProxySendComm::test(SendRequest& request, Completion& out) {
  out.done = false;
  std::lock_guard hold(link_->hub().lock);
  if (!request.active_) return Status::bad_argument;
  if (request.pending_ > 0) (void)link_->poll();
  if (request.pending_ > 0 && !link_->broken()) link_->waited(kSendSlots - free_count_);
  if (request.pending_ > 0) return link_->broken() ? Status::remote : Status::ok;
  request.active_ = false;
  free_[static_cast<std::size_t>(free_count_++)] = request.slot_;
  out.done = true;
  out.count = 1;
  out.bytes[0] = request.bytes_;
  return Status::ok;
}

Result<Memory*> ProxySendComm::register_memory(void* data, std::size_t bytes, MemoryType type,
                                               std::uint64_t dmabuf_offset, int dmabuf_fd) {
  const Staging staging = staging_of(plan_);
  auto made = core_->devices->register_memory(device_, data, bytes, type, dmabuf_offset, dmabuf_fd,
                                              staging);
  if (made && type == MemoryType::cuda && staging != Staging::never) prepare_staging();
  return made;
}

Status ProxySendComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

}  // namespace twinpath
