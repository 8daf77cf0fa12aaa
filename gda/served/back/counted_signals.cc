// See counted_signals.h.
#include "gda/served/back/counted_signals.h"

#include <endian.h>

#include <array>
#include <atomic>
#include <cstring>

#include "plugin/base/log.h"

namespace twinpath::gda {

void CountedSender::fill(ibv_send_wr& wr, std::uint64_t remote, std::uint32_t rkey) {
  const std::uint64_t index = (remote - target_.signals) / sizeof(std::uint64_t);
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htobe32(static_cast<std::uint32_t>(index));
  wr.wr.rdma.remote_addr = target_.row + sent_++ % target_.words * sizeof(std::uint64_t);
  wr.wr.rdma.rkey = rkey;
}

CountedInbox::CountedInbox(const Memory& memory, GpuFlush* flush)
    : memory_(memory),
      rows_(memory.pairs),
      flush_(flush),
      waiting_(flush == nullptr ? 0 : memory.pairs * kReceives) {}

Status CountedInbox::listen(std::size_t pair, ibv_qp* qp) {
  rows_[pair].qp = qp;
  return prepare(pair, qp, kReceives);
}

Status CountedInbox::prepare(std::size_t pair, ibv_qp* qp, int receives) {
  const int error = post(qp, pair, receives);
  if (error == 0) return Status::ok;
  TP_WARN("posting receives for signals fails: %s (errno %d); see dmesg of this host",
          std::strerror(error), error);
  return Status::system;
}

bool CountedInbox::stop(std::size_t pair) {
  ibv_recv_wr wr{};
  wr.wr_id = WorkRequestId::of(pair, WorkRequestId::kLastReceive);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(rows_[pair].qp, &wr, &bad) == 0;
}

void CountedInbox::move(std::size_t pair, int, ibv_qp* qp) {
  rows_[pair].qp = qp;
  rows_[pair].owed = 0;
}

int CountedInbox::post(ibv_qp* qp, std::size_t pair, int count) {
  std::array<ibv_recv_wr, kReceives + 1> requests{};
  for (int i = 0; i < count; ++i) {
    ibv_recv_wr& wr = requests[static_cast<std::size_t>(i)];
    wr.wr_id = WorkRequestId::of(pair, WorkRequestId::kReceive);
    wr.next = i + 1 < count ? &requests[static_cast<std::size_t>(i) + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, requests.data(), &bad);
}

void CountedInbox::on_receive(const ibv_wc& wc) {
  const std::size_t pair = WorkRequestId::pair(wc);
  // Flushed receives: the sender, or this end's own sends, tell what went wrong.
  if (wc.status != IBV_WC_SUCCESS || pair >= rows_.size()) return;
  const std::size_t index = be32toh(wc.imm_data);
  const std::size_t at = pair * memory_.row + rows_[pair].taken++ % memory_.row;
  if (index < memory_.signals) {
    // Partner: the adapter's write, which comes before the completion.
    const std::uint64_t what =
        std::atomic_ref<std::uint64_t>(memory_.words[at]).load(std::memory_order_acquire);
    // The READ is posted after the completion, so it pushes the signal's data.  While others wait,
    // this one does, too: who sees it may rely on what its sender signalled before.
    if (flush_ != nullptr && (flush_->needed() || first_waiting_ != next_waiting_)) {
      waiting(next_waiting_++) = {static_cast<std::uint32_t>(pair),
                                  static_cast<std::uint32_t>(index), what, flush_->request()};
      return;
    }
    add(index, what);
  }
  give_back(pair);
}

void CountedInbox::settle() {
  while (first_waiting_ != next_waiting_ && waiting(first_waiting_).ticket <= flush_->done()) {
    const Waiting& next = waiting(first_waiting_++);
    add(next.index, next.add);
    give_back(next.pair);
  }
}

void CountedInbox::add(std::size_t index, std::uint64_t what) {
  // Partner: the acquire of a kernel that waits for the signal.
  std::atomic_ref<std::uint64_t>(memory_.table[index]).fetch_add(what, std::memory_order_release);
}

void CountedInbox::give_back(std::size_t pair) {
  Row& row = rows_[pair];
  if (++row.owed < kRefill) return;
  // An error is the queue pair's end, which its sends report.
  if (post(row.qp, pair, row.owed) == 0) row.owed = 0;
}

}  // namespace twinpath::gda
