#include "proxy/receive/cts_writer.h"

#include <algorithm>

namespace twinpath {

std::uint64_t CtsWriter::add(const Cts& cts) {
  const std::uint64_t seq = next_++;
  layout_.write(shadow_.data() + layout_.offset(seq), cts, seq);
  Cell& cell = cells_[cts_place(seq)];
  cell.tag = cts.tag;
  cell.state = cts.no_completion ? State::optional : State::waiting;
  if (cts.no_completion) {
    if (optional_++ == 0) optional_tag_ = cts.tag;
    ++run_;
  } else if (optional_ == 0 || cts.tag == optional_tag_) {
    run_ = 0;
  }
  return seq;
}

int CtsWriter::post(Queue& queue) {
  while (posted_ < next_) {
    // One write per run of neighbours: up to the ring's end, and never more than a batch.
    const std::uint64_t wrap = (posted_ / kCtsCells + 1) * kCtsCells;
    const std::uint64_t end = std::min({next_, wrap, posted_ + kCtsBatch});
    if (writes_ - done_ >= kRecvSendDepth) return 0;  // goes on after a completion
    if (const int error = post_run(queue, posted_, end); error != 0) return error;
    open_ += end - posted_;
    posted_ = end;
  }
  return 0;
}

int CtsWriter::post_run(Queue& queue, std::uint64_t first, std::uint64_t end) {
  ibv_sge sge{};
  sge.addr = shadow_.address() + layout_.offset(first);
  sge.length =
      static_cast<std::uint32_t>(layout_.wire_bytes(static_cast<std::size_t>(end - first)));
  sge.lkey = shadow_.lkey(queue.rail);
  ibv_send_wr wr{};
  const std::uint64_t number = writes_ + 1;
  wr.wr_id = encode(
      WrId{id_.index, id_.epoch, WrKind::cts, 0, static_cast<std::uint16_t>(number & 0xffff)});
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  if (sge.length <= queue.inline_bytes) wr.send_flags |= IBV_SEND_INLINE;
  if (number % kCtsSignalPeriod == 0) wr.send_flags |= IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = ring_ + layout_.offset(first);
  wr.wr.rdma.rkey = rkey_;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue.qp.get(), &wr, &bad);
  if (error == 0) writes_ = number;
  return error;
}

void CtsWriter::use(std::uint64_t seq) {
  cells_[cts_place(seq)].state = State::used;
  if (seq < posted_ && open_ > 0) --open_;
}

void CtsWriter::used(std::uint64_t first, int count) {
  std::uint64_t speaks_before = 0;  // optional cells before this one are used
  for (std::uint64_t seq = first; seq < first + static_cast<std::uint64_t>(count); ++seq) {
    use(seq);
    if (optional_ > 0 && cells_[cts_place(seq)].tag == optional_tag_) speaks_before = seq;
  }
  for (std::uint64_t seq = free_; seq < speaks_before && optional_ > 0; ++seq) {
    if (cells_[cts_place(seq)].state != State::optional) continue;
    use(seq);
    --optional_;
  }
  while (free_ < next_ && cells_[cts_place(free_)].state == State::used) ++free_;
}

void CtsWriter::on_completion(std::uint16_t generation) {
  // The number's low 16 bits; fewer than 2^16 writes are under way.
  const auto behind = static_cast<std::uint16_t>((writes_ & 0xffff) - generation);
  done_ = std::max(done_, writes_ - behind);
}

}  // namespace twinpath
