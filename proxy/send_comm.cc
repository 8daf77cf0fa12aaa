#include "proxy/send_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "plugin/base/log.h"

namespace twinpath {

ProxySendComm::ProxySendComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : core_(std::move(core)),
      device_(device),
      ring_(std::move(parts.ring)),
      layout_(parts.layout),
      link_(std::move(parts.link)) {
  rails_ = std::max(static_cast<int>(link_->set().rails().size()), layout_.rails());
  for (int i = kSendSlots; i-- > 0;) {
    SendRequest& r = requests_[static_cast<std::size_t>(i)];
    r.comm_ = this;
    r.slot_ = static_cast<std::uint16_t>(i);
    free_[static_cast<std::size_t>(free_count_++)] = r.slot_;
  }
  link_->hub().attach(link_->set().comm_id(), this);
}

ProxySendComm::~ProxySendComm() {
  // From here on completions find nobody; then the queues go, then what they wrote to.
  link_->hub().attach(link_->set().comm_id(), nullptr);
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
  }
  consume_cell(seq);
  SendRequest& r = requests_[free_[static_cast<std::size_t>(--free_count_)]];
  r.bytes_ = bytes;
  r.pending_ = 0;
  r.active_ = true;
  ++r.generation_;
  TP_TRY(post(r, cts, static_cast<const std::uint8_t*>(data), bytes, mine));
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
    first = next_queue_;
    next_queue_ = (next_queue_ + 1) % queues;
  }
}

Status ProxySendComm::post(SendRequest& request, const Cts& cts, const std::uint8_t* data,
                           std::size_t bytes, const ProxyMemory* memory) {
  int first = 0, lanes = 1;
  choose_lanes(bytes, first, lanes);
  StripePlan plan;
  if (lanes == 1) {
    plan.chunks[0] = {0, 0, bytes};
    plan.count = 1;
  } else {
    std::array<std::uint32_t, kMaxQps> weights;
    for (int i = 0; i < lanes; ++i)
      weights[static_cast<std::size_t>(i)] = link_->queue(first + i).speed_mbps;
    plan = plan_stripes(bytes, {weights.data(), static_cast<std::size_t>(lanes)});
  }
  const Immediate imm{cts.slot, cts.sub, cts.generation, static_cast<std::uint8_t>(plan.count)};
  const CompletionHub::CommId id = link_->set().comm_id();
  for (int i = 0; i < plan.count; ++i) {
    const Chunk& chunk = plan.chunks[static_cast<std::size_t>(i)];
    Queue& queue = link_->queue(first + chunk.lane);
    ibv_sge sge{};
    ibv_send_wr wr{};
    if (chunk.bytes > 0) {
      sge.addr = reinterpret_cast<std::uintptr_t>(data) + chunk.offset;
      sge.length = static_cast<std::uint32_t>(chunk.bytes);
      sge.lkey = memory->lkey(queue.rail);
      wr.sg_list = &sge;
      wr.num_sge = 1;
    }
    wr.wr_id =
        encode(WrId{id.index, id.epoch, WrKind::send_data, request.slot_, request.generation_});
    wr.send_flags = IBV_SEND_SIGNALED;
    // The CPU reads inline data, so CUDA memory cannot be.
    if (chunk.bytes > 0 && chunk.bytes <= std::min<std::size_t>(queue.inline_bytes, kInlineData) &&
        memory->type == MemoryType::host)
      wr.send_flags |= IBV_SEND_INLINE;
    if (cts.no_completion) {
      wr.opcode = IBV_WR_RDMA_WRITE;
    } else {
      wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      wr.imm_data = htonl(encode(imm));
    }
    wr.wr.rdma.remote_addr = cts.address + chunk.offset;
    wr.wr.rdma.rkey = cts.rkeys[static_cast<std::size_t>(queue.remote_rail)];
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(queue.qp.get(), &wr, &bad);
    if (error != 0) {
      link_->fail("cannot post a write of %zu bytes on QP %u: %s (errno %d)", chunk.bytes,
                  queue.qp->qp_num, std::strerror(error), error);
      return Status::system;
    }
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
  SendRequest& r = requests_[id.slot];
  if (r.active_ && r.generation_ == id.generation && r.pending_ > 0) --r.pending_;
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
  return core_->devices->register_memory(device_, data, bytes, type, dmabuf_offset, dmabuf_fd);
}

Status ProxySendComm::deregister_memory(Memory* memory) {
  return core_->devices->deregister_memory(memory);
}

}  // namespace twinpath
