#include "proxy/receive/recv_comm.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "plugin/base/log.h"
#include "proxy/queues/receive_queue.h"
#include "proxy/wire/parcel.h"

namespace twinpath {
ProxyRecvComm::ProxyRecvComm(std::shared_ptr<SessionCore> core, int device, ConnectionParts parts)
    : core_(std::move(core)),
      device_(device),
      shadow_(std::move(parts.ring)),
      layout_(parts.layout),
      link_(std::move(parts.link)),
      cts_(*shadow_, layout_, parts.remote_ring, parts.remote_rkeys[0], link_->set().comm_id()),
      flush_(core_->hub, core_->devices, link_->set().rails(), link_->set().comm_id()),
      plan_(parts.plan) {
  for (int i = kRecvSlots; i-- > 0;) {
    RecvRequest& r = requests_[static_cast<std::size_t>(i)];
    r.comm_ = this;
    r.slot_ = static_cast<std::uint8_t>(i);
    free_[static_cast<std::size_t>(free_count_++)] = r.slot_;
  }
  for (std::size_t i = 0; i < flushes_.size(); ++i) {
    flushes_[i].comm_ = this;
    flushes_[i].slot_ = static_cast<std::uint16_t>(i);
  }
  link_->hub().attach(link_->set().comm_id(), this);
}

ProxyRecvComm::~ProxyRecvComm() {
  // From here on completions find nobody, and so nothing is held any more.
  link_->hub().attach(link_->set().comm_id(), nullptr);
  std::lock_guard hold(link_->hub().lock);
  link_->hub().drop_held(*this);
}

Status ProxyRecvComm::irecv(std::span<const RecvBuffer> buffers, bool completion_optional,
                            Request** request) {
  *request = nullptr;
  if (buffers.empty() || buffers.size() > static_cast<std::size_t>(kMaxRecvs)) {
    TP_WARN("irecv of %zu buffers; 1 to %d are possible", buffers.size(), kMaxRecvs);
    return Status::bad_argument;
  }
  std::uint8_t staged = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const RecvBuffer& b = buffers[i];
    const auto* m = static_cast<const ProxyMemory*>(b.memory);
    if (b.bytes == 0) continue;
    if (m != nullptr && m->device == device_ && m->covers(b.data, b.bytes)) {
      const bool stage = m->type == MemoryType::cuda && !plan_.direct(b.bytes);
      if (stage ? m->mirror == nullptr : !m->direct)
        return not_reachable("irecv", link_->peer().text, *m, b.bytes);
      if (stage) staged = static_cast<std::uint8_t>(staged | 1u << i);
      continue;
    }
    TP_WARN(
        "irecv of %zu bytes at %p from %s: the buffer is not inside its registration on this "
        "device "
        "(%zu bytes at 0x%llx)",
        b.bytes, b.data, link_->peer().text.c_str(), m == nullptr ? 0 : m->length,
        m == nullptr ? 0ULL : static_cast<unsigned long long>(m->address));
    return Status::bad_argument;
  }
  const int count = static_cast<int>(buffers.size());
  std::lock_guard hold(link_->hub().lock);
  if (link_->broken()) return Status::remote;
  if (staged != 0 && staged_ == nullptr) staged_ = std::make_unique<StagedReceives>();
  if (free_count_ == 0 || !cts_.room_for(count)) {
    post_cells();
    (void)link_->poll();
    link_->waited(kRecvSlots - free_count_);
    return link_->broken() ? Status::remote : Status::again;
  }
  RecvRequest& r = requests_[free_[static_cast<std::size_t>(--free_count_)]];
  r.active_ = true;
  ++r.generation_;
  r.count_ = r.left_ = static_cast<std::uint8_t>(count);
  r.staged_ = staged;
  r.optional_ = completion_optional && count == 1 && staged == 0 &&
                core_->devices->config().optional_recv_completion &&
                cts_.may_skip_completion(buffers[0].tag);
  for (int i = 0; i < count; ++i) {
    const RecvBuffer& b = buffers[static_cast<std::size_t>(i)];
    Cts cts;
    cts.address = reinterpret_cast<std::uintptr_t>(b.data);
    cts.bytes = static_cast<std::uint32_t>(
        std::min<std::size_t>(b.bytes, std::numeric_limits<std::uint32_t>::max()));
    cts.tag = b.tag;
    cts.group = r.count_;
    cts.sub = static_cast<std::uint8_t>(i);
    cts.slot = r.slot_;
    cts.generation = r.generation_;
    cts.no_completion = r.optional_;
    const auto* memory = static_cast<const ProxyMemory*>(b.memory);
    if ((staged >> i & 1) != 0) {
      staged_->expect(r.slot_, i, *memory, cts.address, cts.bytes);
      cts.address = reinterpret_cast<std::uintptr_t>(memory->mirror->at(cts.address));
      memory = &memory->mirror->memory;
    }
    cts.copyable = b.bytes == 0 || memory->type == MemoryType::host;
    if (b.bytes > 0)
      for (int rail = 0; rail < layout_.rails(); ++rail)
        cts.rkeys[static_cast<std::size_t>(rail)] = memory->rkey(rail);
    const std::uint64_t seq = cts_.add(cts);
    if (i == 0) r.first_cell_ = seq;
    r.subs_[static_cast<std::size_t>(i)] = {};
  }
  // Several receives posted in a row share one write: it waits for the next test or a batch.
  if (cts_.batch_full()) post_cells();
  *request = &r;
  return Status::ok;
}

void ProxyRecvComm::post_cells() {
  if (link_->broken()) return;
  Queue& queue = link_->queue(0);  // one queue, so that cells arrive in order
  if (const int error = cts_.post(queue); error != 0)
    link_->fail("cannot post a clear-to-send write on QP %u: %s (errno %d)", queue.qp->qp_num,
                std::strerror(error), error);
}

void ProxyRecvComm::on_completion(const WrId& id, const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) {
    if (id.kind == WrKind::flush && flush_.ready())
      link_->fail_local_completion(id, wc, flush_.queues());
    else
      link_->fail_completion(id, wc);
    return;
  }
  switch (id.kind) {
    case WrKind::receive:
      on_data(wc, id.slot);
      return;
    case WrKind::cts:
      cts_.on_completion(id.generation);
      return;
    case WrKind::flush: {
      if (id.slot >= kFlushSlots) return;
      FlushRequest& f = flushes_[id.slot];
      if (f.active_ && f.generation_ == id.generation) --f.pending_;
      return;
    }
    default:
      return;
  }
}

void ProxyRecvComm::on_data(const ibv_wc& wc, int queue) {
  if (queue >= link_->queue_count()) return;
  if (++unposted_[static_cast<std::size_t>(queue)] >= kRecvChain) repost(queue);
  const std::uint32_t bits = ntohl(wc.imm_data);
  const bool valid = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
  if (!valid || !(is_parcel(bits) ? take_parcel(bits) : take_chunk(bits, wc.byte_len, queue)))
    link_->fail("it sent data for no receive posted here (immediate 0x%x)",
                static_cast<unsigned>(bits));
}

bool ProxyRecvComm::take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue) {
  Immediate imm;
  if (!decode_immediate(bits, imm)) return false;
  RecvRequest* r = expecting(imm.slot, imm.sub, imm.generation);
  if (r == nullptr) return false;
  RecvRequest::Sub& sub = r->subs_[imm.sub];
  if (sub.expected == 0) sub.expected = imm.chunks;
  if (sub.expected != imm.chunks || sub.arrived == sub.expected) {
    link_->fail("it sent %d chunks where it had announced %d", sub.arrived + 1, sub.expected);
    return false;
  }
  sub.bytes += bytes;
  if ((r->staged_ >> imm.sub & 1) != 0) {
    ++sub.arrived;
    return land(*r, imm.sub, imm.in_order);
  }
  if (bytes > 0) carried_ |= 1u << link_->queue(queue).rail;
  if (++sub.arrived == sub.expected) sub_complete(*r);
  return true;
}

bool ProxyRecvComm::take_parcel(std::uint32_t bits) {
  ParcelImmediate imm;
  if (!decode_immediate(bits, imm)) return false;
  std::uint8_t* box = shadow_->data() + layout_.ring_bytes();
  for (std::uint32_t left = imm.present, place = imm.first; left != 0; left >>= 1, ++place) {
    if ((left & 1) == 0) continue;
    if (place >= kCtsCells) return false;
    const ParcelPlace* in = parcel_place(box, place);
    // Our own cell says which receive it is, where it lies and how long it may be.
    const std::uint8_t* cell = shadow_->data() + layout_.offset(place);
    Cts cts;
    if (!layout_.read(cell, cts)) return false;
    RecvRequest* r = expecting(cts.slot, cts.sub, cts.generation);
    if (r == nullptr || !cts.copyable || in->bytes > cts.bytes || in->bytes > kParcelBytes ||
        in->gen != layout_.gen(cell))
      return false;
    RecvRequest::Sub& sub = r->subs_[cts.sub];
    if (sub.arrived != 0) return false;
    auto* to = reinterpret_cast<void*>(static_cast<std::uintptr_t>(cts.address));
    sub.bytes = in->bytes;
    sub.expected = sub.arrived = 1;
    if ((r->staged_ >> cts.sub & 1) == 0) {
      copy_words(to, in->data, in->bytes);
      sub_complete(*r);
    } else if (!land_parcel(*r, cts.sub, to, *in)) {
      return false;
    }
  }
  return true;
}

RecvRequest* ProxyRecvComm::expecting(int slot, int sub, int generation) {
  RecvRequest& r = requests_[static_cast<std::size_t>(slot)];
  return r.active_ && !r.optional_ && r.generation_ == generation && sub < r.count_ ? &r : nullptr;
}

void ProxyRecvComm::sub_complete(RecvRequest& r) {
  if (--r.left_ == 0) cts_.used(r.first_cell_, r.count_);
}

void ProxyRecvComm::repost(int queue) {
  Queue& q = link_->queue(queue);
  const int error = post_receives(q, link_->set().comm_id(), queue);
  if (error != 0)
    link_->fail("cannot post receives on QP %u: %s (errno %d)", q.qp->qp_num, std::strerror(error),
                error);
  unposted_[static_cast<std::size_t>(queue)] -= kRecvChain;
}

Status RecvRequest::test(Completion& out) { return comm_->test(*this, out); }

Status ProxyRecvComm::test(RecvRequest& request, Completion& out) {
  out.done = false;
  std::lock_guard hold(link_->hub().lock);
  if (!request.active_) return Status::bad_argument;
  auto finished = [&] {
    return request.optional_ ? cts_.posted(request.first_cell_) : request.left_ == 0;
  };
  if (!finished()) {
    // Its cell is all that an optional receive waits for.
    if (request.optional_ || cts_.due(idle_tests_)) post_cells();
    if (!finished()) idle_tests_ = link_->poll() > 0 ? 0 : idle_tests_ + 1;
    if (!finished() && !link_->broken()) link_->waited(kRecvSlots - free_count_);
  }
  if (!finished()) return link_->broken() ? Status::remote : Status::ok;
  request.active_ = false;
  free_[static_cast<std::size_t>(free_count_++)] = request.slot_;
  out.done = true;
  out.count = request.count_;
  for (std::size_t i = 0; i < request.count_; ++i) out.bytes[i] = request.subs_[i].bytes;
  return Status::ok;
}

}  // namespace twinpath
