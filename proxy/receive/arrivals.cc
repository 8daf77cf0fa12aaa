// What the sender's writes announce: chunks of messages, and parcels.
#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "plugin/base/clock.h"
#include "proxy/queues/receive_queue.h"
#include "proxy/receive/recv_comm.h"

namespace twinpath {

void ProxyRecvComm::on_completion(const ibv_wc& wc) {
  if (kind_of(wc.wr_id) != WrKind::receive || wc.status != IBV_WC_SUCCESS) [[unlikely]] {
    on_other(wc);
    return;
  }
  const std::size_t queue = slot_of(wc.wr_id);
  const bool repost_now = ++unposted_[queue] >= kRecvChain;
  const std::uint32_t bits = ntohl(wc.imm_data);
  // A message in one piece for a plain receive, nearly always.
  if ((bits & ~kReceiveBits) == 0 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && !repost_now)
      [[likely]] {
    const CellMeta which(bits);
    if (RecvRequest* r = expecting(which); r != nullptr) [[likely]] {
      RecvRequest::Sub& sub = r->subs_[which.sub()];
      const std::uint32_t bytes = wc.byte_len;
      if (sub.state.expected == 0 && bytes <= sub.capacity && r->staged_ == 0) [[likely]] {
        sub.state.become(RecvRequest::Sub::State::whole());
        r->sizes_[which.sub()] = bytes;
        if (bytes > 0) carried_ |= rail_bit_[queue];
        counters::Rail& rail = *rail_counts_[queue];
        if constexpr (counters::kConnectionCounts) rail.bytes.add(bytes);
        sub_complete(*r, rail);
        return;
      }
    }
  }
  if (repost_now) repost(static_cast<int>(queue));
  on_data(wc, static_cast<int>(queue));
}

// Cells, flushes and failures.
void ProxyRecvComm::on_other(const ibv_wc& wc) {
  const WrKind kind = kind_of(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS) {
    if (kind == WrKind::receive) ++unposted_[slot_of(wc.wr_id)];
    if (kind == WrKind::flush && flush_of(wc) == nullptr) return;  // of queues that were replaced
    if (kind == WrKind::flush && link_->excuses(wc))
      flush_failed(wc);
    else if (kind == WrKind::flush && flush_.ready())
      link_->fail_local_completion(decode_wr_id(wc.wr_id), wc, flush_.queues());
    else
      link_->fail_completion(decode_wr_id(wc.wr_id), wc);
    return;
  }
  if (kind == WrKind::cts) {
    cts_.on_completion(wc.wr_id);
  } else if (kind == WrKind::probe) {
    link_->answered(wc);
  } else if (kind == WrKind::flush) {
    flush_done(wc);
  }
}

FlushRequest* ProxyRecvComm::flush_of(const ibv_wc& wc) {
  const std::size_t slot = slot_of(wc.wr_id);
  if (flushes_ == nullptr || slot >= flushes_->size()) return nullptr;
  FlushRequest& f = (*flushes_)[slot];
  return f.active_ && f.generation_ == generation_of(wc.wr_id) ? &f : nullptr;
}

void ProxyRecvComm::flush_done(const ibv_wc& wc) {
  if (FlushRequest* f = flush_of(wc)) --f->pending_;
}

// An adapter whose port has gone no longer reads through it, and may say so at once.
void ProxyRecvComm::flush_failed(const ibv_wc& wc) {
  flush_stale_ = true;
  if (FlushRequest* f = flush_of(wc)) {
    --f->pending_;
    f->not_before_ = landed_by();
  }
}

void ProxyRecvComm::on_data(const ibv_wc& wc, int queue) {
  const std::uint32_t bits = ntohl(wc.imm_data);
  const bool valid = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
  if (valid && (is_parcel(bits) ? take_parcel(bits, wc.byte_len, queue)
                                : take_chunk(bits, wc.byte_len, queue)))
    return;
  if (valid && !is_parcel(bits) && came_before(CellMeta(bits)))
    link_->fail("it sent one message a second time (immediate 0x%x, %u bytes)",
                static_cast<unsigned>(bits), wc.byte_len);
  else
    link_->fail("it sent data for no receive posted here (immediate 0x%x)",
                static_cast<unsigned>(bits));
}

bool ProxyRecvComm::came_before(CellMeta which) {
  if (!requests_.made(which.slot())) return false;
  const RecvRequest& r = requests_.at(which.slot());
  const auto ago = static_cast<std::uint8_t>(CellMeta(r.bits_).generation() - which.generation());
  return ago == 1 || (ago == 0 && r.left() == 0 && !r.optional_);
}

namespace {

// A reliable connection brings a chunk once. Soft-RoCE does not hold that (test/vm/README.md): it
// may execute a finished request again, with its immediate and none of its bytes. Such a one must
// not be counted for a chunk that is still under way. Chunks have a queue each, or come in order on
// one and are never empty.
bool chunk_came_before(std::uint32_t queues_seen, bool in_order, std::uint32_t bytes, int queue) {
  return in_order ? bytes == 0 : (queues_seen >> queue & 1) != 0;
}

// A word of a parcel's head.
std::uint32_t entry_at(const std::uint8_t* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

}  // namespace

bool ProxyRecvComm::take_chunk(std::uint32_t bits, std::uint32_t bytes, int queue) {
  Immediate imm;
  if (!decode_immediate(bits, imm)) [[unlikely]]
    return false;
  RecvRequest* r = expecting(CellMeta(bits & kReceiveBits));
  if (r == nullptr) [[unlikely]]
    return false;
  if (imm.whole_group) return take_group(*r, imm, bytes, queue);
  RecvRequest::Sub& sub = r->subs_[imm.sub];
  std::uint32_t& size = r->sizes_[imm.sub];
  std::uint32_t& queues = r->queues_[imm.sub];
  if (sub.state.expected == 0) {
    sub.state.expected = imm.chunks;
    size = queues = 0;
  }
  if (sub.state.expected != imm.chunks || sub.state.arrived == sub.state.expected) [[unlikely]] {
    link_->fail("it sent %d chunks where it had announced %d", sub.state.arrived + 1,
                sub.state.expected);
    return false;
  }
  if (imm.chunks > 1) {
    if (chunk_came_before(queues, imm.in_order, bytes, queue)) [[unlikely]] {
      link_->fail("it sent one of %d chunks a second time (immediate 0x%x, %u bytes)", imm.chunks,
                  static_cast<unsigned>(bits), bytes);
      return false;
    }
    queues |= 1u << queue;
  }
  ++sub.state.arrived;
  if (imm.sized) {
    sub.state.sized = true;
    bytes = 0;
    carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  }
  // Each queue that brings a long chunk writes the size before its own immediate, the same from
  // each: only behind the last chunk does nobody write it any more.  Short ones among them have
  // theirs in the completion, and the message's is all of them.
  if (sub.state.sized && sub.state.arrived == sub.state.expected) {
    std::uint32_t whole;
    std::memcpy(&whole, box_->data() + size_offset(imm.slot, imm.sub), sizeof whole);
    bytes = whole - size;  // less than nothing is more than there is room for
  }
  if (size > sub.capacity || bytes > sub.capacity - size) [[unlikely]] {
    link_->fail("it sent %u bytes into a receive of %u", size + bytes, sub.capacity);
    return false;
  }
  size += bytes;
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  if constexpr (counters::kConnectionCounts) rail.bytes.add(bytes);
  if ((r->staged_ >> imm.sub & 1) != 0) [[unlikely]]
    return land(*r, imm.sub, imm.in_order);
  if (bytes > 0) carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  if (sub.state.arrived == sub.state.expected) sub_complete(*r, rail);
  return true;
}

// All messages of a receive of several at once.  The peer may not be believed that none came
// before.
bool ProxyRecvComm::take_group(RecvRequest& r, const Immediate& imm, std::uint32_t bytes,
                               int queue) {
  const std::uint32_t told = imm.sized ? sizeof(std::uint32_t) : r.subs_[imm.sub].capacity;
  bool awaited = r.left() == r.count_ && bytes == told;
  for (std::size_t i = 0; i != r.count_; ++i) awaited = awaited && r.subs_[i].state.expected == 0;
  if (!awaited) [[unlikely]]
    return false;
  std::uint64_t got = 0;
  for (std::size_t i = 0; i != r.count_; ++i) {
    RecvRequest::Sub& sub = r.subs_[i];
    sub.state.become(RecvRequest::Sub::State::whole());
    r.sizes_[i] = sub.capacity;
    got += sub.capacity;
  }
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  if constexpr (counters::kConnectionCounts) rail.bytes.add(got);
  const std::uint8_t staged = r.staged_;
  const unsigned direct = r.count_ - static_cast<unsigned>(std::popcount(staged));
  if (got > 0 && direct != 0) carried_ |= rail_bit_[static_cast<std::size_t>(queue)];
  // Those to be copied on first: with its last part the receive is over.
  for (int i = 0; i != r.count_; ++i)
    if ((staged >> i & 1) != 0 && !land(r, i, false)) return false;
  if (direct != 0) sub_complete(r, rail, direct);
  return true;
}

// As a sender lays a group that it sends in order: the longest messages, for one part after the
// other.  How many of at most `most`.
TP_ALWAYS_INLINE inline unsigned ProxyRecvComm::take_in_order(RecvRequest& r,
                                                              const std::uint8_t* entry,
                                                              const std::uint8_t* data,
                                                              unsigned most) {
  std::uint32_t expected = entry_at(entry);
  const unsigned index = CellMeta(expected & kReceiveBits).sub();
  RecvRequest::Sub* sub = &r.subs_[index];
  std::uint32_t* size = &r.sizes_[index];
  if (expected >> 17 != kParcelBytes) return 0;
  most = std::min(most, kMaxRecvs - index);
  for (unsigned n = 0; n != most; ++n, ++sub, expected += kOneSub, data += kParcelBytes) {
    if (entry_at(entry + sizeof expected * n) != expected ||
        !sub->state.awaits(RecvRequest::Copied::straight) || sub->capacity < kParcelBytes)
      return n;
    sub->state.become(RecvRequest::Sub::State::whole());
    size[n] = kParcelBytes;
    copy_words(sub->to, data, kParcelBytes);
  }
  return most;
}

bool ProxyRecvComm::take_parcel(std::uint32_t bits, std::uint32_t bytes, int queue) {
  ParcelImmediate imm;
  if (!decode_immediate(bits, imm) || bytes > kParcelStride || bytes < parcel_data_at(imm.count))
      [[unlikely]]
    return false;
  const std::uint8_t* entry = box_->data() + place_offset(imm.number);
  const std::uint8_t* const end = entry + bytes;
  const std::uint8_t* data = entry + parcel_data_at(imm.count);
  counters::Rail& rail = *rail_counts_[static_cast<std::size_t>(queue)];
  std::uint64_t got = 0;
  unsigned left = imm.count;
  do {
    // Members of a group come together: their receive is looked for once, and told once.
    const std::uint32_t of = entry_at(entry) & kReceiveBits & ~kSubBits;
    RecvRequest* const r = expecting(CellMeta(of));
    if (r == nullptr) [[unlikely]]
      return false;
    unsigned laid = 0;
    if (r->count_ != 1) {
      const auto fit = static_cast<unsigned>(end - data) / unsigned{kParcelBytes};
      laid = take_in_order(*r, entry, data, std::min(left, fit));
      left -= laid;
      entry += sizeof of * laid;
      data += kParcelBytes * laid;
      got += kParcelBytes * laid;
    }
    for (; left != 0 && (entry_at(entry) & kReceiveBits & ~kSubBits) == of; --left) {
      ParcelEntry in;
      const bool known = decode_entry(entry_at(entry), in);
      const unsigned index = CellMeta(in.receive).sub();
      RecvRequest::Sub& sub = r->subs_[index];
      const std::uint8_t* const from = data;
      data += padded(in.bytes);
      if (!known || in.bytes > sub.capacity || data > end) [[unlikely]]
        return false;
      got += in.bytes;
      if (sub.state.awaits(RecvRequest::Copied::straight)) [[likely]] {
        sub.state.become(RecvRequest::Sub::State::whole());
        r->sizes_[index] = in.bytes;
        copy_words(sub.to, from, in.bytes);
        ++laid;
      } else if (!land_parcel(*r, static_cast<int>(index), from, in.bytes)) {
        return false;
      }
      entry += sizeof of;
    }
    if (laid != 0) sub_complete(*r, rail, laid);
  } while (left != 0);
  if constexpr (counters::kConnectionCounts) rail.bytes.add(got);
  return data == end && parcels_.read(imm.number);
}

void ProxyRecvComm::repost(int queue) {
  if (link_->halted()) return;
  Queue& q = link_->queue(queue);
  const int error = post_receives(q, link_->set().comm_id(), queue);
  if (error != 0)
    link_->fail("cannot post receives on QP %u: %s (errno %d)", q.qp->qp_num, std::strerror(error),
                error);
  std::uint16_t& unposted = unposted_[static_cast<std::size_t>(queue)];
  unposted = static_cast<std::uint16_t>(unposted - kRecvChain);
}

// Data may come over any rail; the first queue in use stands for them.
std::size_t RecvRequest::parts(std::span<Part, kMaxParts> out) const {
  std::lock_guard hold(comm_->hub_->lock);
  Part part;
  const QueueSet& set = comm_->link_->set();
  for (const Queue& queue : set.queues()) {
    if (queue.qp == nullptr) continue;
    part.device =
        comm_->core_->devices->index_of(set.rails()[static_cast<std::size_t>(queue.rail)].port);
    part.queue = queue.qp->qp_num;
    break;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    part.id = first_cell_ + i;
    part.bytes = subs_[i].capacity;
    part.buffer = static_cast<int>(i);
    out[i] = part;
  }
  return count_;
}

std::uint32_t RecvRequest::parts_left() const {
  std::lock_guard hold(comm_->hub_->lock);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < count_; ++i)
    if (!subs_[i].state.complete()) bits |= 1u << i;
  return bits;
}

}  // namespace twinpath
