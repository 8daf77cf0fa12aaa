#include "proxy/receive/cts_writer.h"

#include <algorithm>

namespace twinpath {
namespace {

// How many cells one write may carry: what goes inline, and never past the end of a run of
// kCtsBatch, so that neither the ring's end nor that of the waiting cells is crossed.
std::uint64_t cells_of_write(const RegisteredBuffer* shadow, CtsLayout layout,
                             std::uint32_t inline_bytes) {
  if (shadow != nullptr) return kCtsBatch;
  std::uint64_t n = 1;
  while (n < kCtsBatch && layout.wire_bytes(n + 1) <= inline_bytes) ++n;
  return n;
}

static_assert(kCtsCells % kCtsBatch == 0);

}  // namespace

CtsWriter::CtsWriter(RegisteredBuffer* shadow, CtsLayout layout, const Queue& queue,
                     std::uint64_t remote_ring, std::uint32_t remote_rkey, CompletionHub::CommId id,
                     bool keep)
    : shadow_(shadow),
      place_mask_((shadow != nullptr || keep ? kCtsCells : kCtsBatch) - 1),
      own_(shadow == nullptr ? std::make_unique_for_overwrite<std::uint64_t[]>(
                                   layout.stride() * (place_mask_ + 1) / sizeof(std::uint64_t))
                             : nullptr),
      cells_(shadow != nullptr ? shadow->data() : reinterpret_cast<std::uint8_t*>(own_.get())),
      layout_(layout),
      ring_(remote_ring),
      flags_(shadow != nullptr ? 0u : unsigned{IBV_SEND_INLINE}) {
  wr_.wr_id = encode(WrId{id.index, id.epoch, WrKind::cts, 0, 0});
  wr_.sg_list = &sge_;
  wr_.num_sge = 1;
  wr_.opcode = IBV_WR_RDMA_WRITE;
  use(queue, remote_rkey);
}

void CtsWriter::use(const Queue& queue, std::uint32_t remote_rkey) {
  qp_ = queue.qp.get();
  run_cells_ = cells_of_write(shadow_, layout_, queue.inline_bytes);
  sge_.lkey = shadow_ != nullptr ? shadow_->lkey(queue.rail) : 0;
  wr_.wr.rdma.rkey = remote_rkey;
}

void CtsWriter::restart(const Queue& queue, std::uint32_t remote_rkey, std::uint64_t seen) {
  use(queue, remote_rkey);
  wr_.wr_id += std::uint64_t{1} << 48;  // completions of the old queue find another number
  unpolled_ = unsignalled_ = 0;
  open_ -= static_cast<std::int64_t>(posted_ - seen);  // posting adds them again
  posted_ = seen;
  for (std::uint64_t seq = seen; seq != next_; ++seq) layout_.clear_parcels(cell(seq));
}

void CtsWriter::renew_keys(std::span<const KeyRange> memory) {
  for (std::uint64_t seq = used_.ended(); seq != next_; ++seq)
    (void)twinpath::renew_keys(layout_, cell(seq), memory);
}

int CtsWriter::post() {
  do {
    const std::uint64_t first = posted_;
    const std::uint64_t to_end_of_run = kCtsBatch - first % kCtsBatch;
    const std::uint64_t count = std::min(std::min(next_ - first, to_end_of_run), run_cells_);
    if (unpolled_ >= kRecvSendDepth) [[unlikely]]
      return 0;  // goes on after a completion
    sge_.addr = reinterpret_cast<std::uintptr_t>(cell(first));
    sge_.length = static_cast<std::uint32_t>(layout_.wire_bytes(count));
    wr_.wr.rdma.remote_addr = ring_ + layout_.offset(first);
    wr_.send_flags = flags_;
    if (++unsignalled_ == kCtsSignalPeriod) [[unlikely]]
      wr_.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(qp_, &wr_, &bad); error != 0) [[unlikely]] {
      --unsignalled_;
      return error;
    }
    if (unsignalled_ == kCtsSignalPeriod) unsignalled_ = 0;
    ++unpolled_;
    open_ += static_cast<std::int64_t>(count);
    posted_ = first + count;
  } while (posted_ != next_);
  return 0;
}

void CtsWriter::on_completion(std::uint64_t wr_id) {
  if (wr_id == wr_.wr_id) unpolled_ -= kCtsSignalPeriod;
}

}  // namespace twinpath
